"""The files of results that tables, charts and the page read, as far as they read them.

Files may be damaged, or come from another version. Keys that nothing here reads are therefore ignored, and the others
must have the right type: a table either shows a file's numbers or names the field that is wrong.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from selfimprove.core.errors import UserError
from selfimprove.core.outcomes import Number
from selfimprove.core.records import LARGEST, read_object


class Part(BaseModel):
    """Base of everything that is read: numbers are no strings, and other keys are ignored."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class Figure(Part):
    """An estimate: mean, standard error and number of tasks."""

    mean: Number
    se: Number
    n: int


class Level(Part):
    """Reflect-RL's results at one level of the curriculum."""

    success: Figure
    cost: Figure
    episodes: int


def _kind(value: object) -> str:
    return "estimate" if isinstance(value, Figure) or (isinstance(value, Mapping) and "mean" in value) else "other"


class Metrics(Part):
    """``metrics.json``: metric -> estimate. Other values, such as counts, are not shown."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[
        str, Annotated[Annotated[Figure, Tag("estimate")] | Annotated[Any, Tag("other")], Discriminator(_kind)]
    ]
    levels: dict[str, Level] = {}

    @property
    def figures(self) -> set[str]:
        """The metrics that have an estimate."""
        return {name for name, value in self.__pydantic_extra__.items() if isinstance(value, Figure)}


class Trained(Part):
    """``train.json``: the number of trained tokens."""

    real_tokens: Number = 0


class Row(Part):
    """A row of a summary."""

    what: str
    metrics: Metrics
    training_tokens: Number
    omissions: dict[str, dict[str, Number]] = {}
    environments: dict[str, dict[str, Figure]] = {}


class Curve(Part):
    """A plot of a summary: points {row, ``x``, se, the drawn metric}."""

    x: str
    y: str
    title: str
    note: str = ""
    top: Number | None = None
    points: list[dict[str, Number | str | None]]

    @model_validator(mode="after")
    def _can_be_drawn(self) -> Self:
        drawn = next((key for key in self.points[0] if key not in ("row", "se", self.x)), "") if self.points else ""
        for place, point in enumerate(self.points):
            if not isinstance(point.get("row"), str):
                raise ValueError(f"point {place} has no row")
            for key in (self.x, "se", drawn):
                if not isinstance(point.get(key), int | float):
                    raise ValueError(f"point {place} has no number {key!r}")
        return self


class Summary(Part):
    """``results/summary/<method>.json``; see ``methods.summary.summarise``."""

    columns: list[str] = Field(min_length=1)
    gains: list[str]
    rates: dict[str, str]
    note: str
    order: list[str] = Field(min_length=1)
    solid: list[str]
    rows: dict[str, Row]
    last: str
    last_minus: dict[str, dict[str, Figure]]
    headline: str = Field(default="", min_length=1)
    unlike_last: dict[str, str] = {}
    curve: Curve | None = None
    curves: list[Curve] = []

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        headline = self.headline or self.columns[0]
        compared = {*self.columns, headline}
        for name in (*self.order, self.last):
            if name not in self.rows:
                raise ValueError(f"row {name!r} is missing")
        environments = self.rows[self.order[0]].environments
        for name in self.order:
            metrics = self.rows[name].metrics
            others = {*self.gains, *self.rates} & (metrics.__pydantic_extra__.keys())
            if lacking := sorted((compared | others) - metrics.figures):
                raise ValueError(f"row {name!r} has no estimate of {lacking[0]!r}")
            for one in environments:
                if headline not in self.rows[name].environments.get(one, {}):
                    raise ValueError(f"row {name!r} has no estimate of {headline!r} in {one!r}")
        for name, differences in self.last_minus.items():
            if lacking := sorted(compared - differences.keys()):
                raise ValueError(f"last_minus of row {name!r} has no estimate of {lacking[0]!r}")
        return self


TIMING = Path(".scratch/timing")
"""Folder of the seconds and tokens of each stage's last run, below the run's folder."""


def read_timing(root: Path, stage: str) -> dict[str, float]:
    """Seconds and tokens of a stage's last run in a folder; {} if they are not recorded or the file is damaged.

    They are no results, so a damaged file must not prevent a table.
    """
    try:
        found = read_object(root / TIMING / f"{stage}.json")
    except (OSError, UserError):
        return {}
    return {key: value for key, value in found.items() if isinstance(value, int | float) and abs(value) <= LARGEST}
