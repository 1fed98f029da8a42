"""The rows of a results table: what each is trained from and on, and the checks that all methods share.

A row is trained by ``<method>-finetune@<row>`` and measured by ``<method>-evaluate@<row>``. ``base`` is the warm start;
a row that ``iterations`` also has learns from the data which that iteration generated; every other row is a control.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import Field

from selfimprove.core.params import Section
from selfimprove.methods.lineage import check_known, check_names, lineage
from selfimprove.methods.trained import Trained
from selfimprove.training.config import FinetuneParams

BASE, START, NONE = "base", "start", "none"
"""The row of the warm start; the model that it starts from (``base@<method>`` makes it); and no row at all."""
RESERVED = (START, NONE, "tasks")
"""Names that no row may have: folders beside the rows' have them."""


class TrainedRow(Section):
    """One row. dvc.yaml reads all keys but ``train``, so each has to be there, also where it is ``none``."""

    init: str = Field(description="row that provides the initial weights; start: the model in section base")
    source: str = Field(description="origin of the training data: base (the demonstrations) or an iteration")
    match: str = Field(
        description="for a control: the iteration whose token count, ancestors included, it matches; otherwise none"
    )


R = TypeVar("R", bound=Any)  # has a `match`


def controls(rows: Mapping[str, R]) -> dict[str, R]:
    """The rows that are controls."""
    return {name: row for name, row in rows.items() if row.match != NONE}


class Iterated(Trained):
    """The section of a method whose iterations go on from a base."""

    train: FinetuneParams = Field(default=FinetuneParams(), description="defaults of every row's training")
    rows: dict[str, Any]
    iterations: dict[str, Any]

    @property
    def controls(self) -> dict[str, Any]:
        """The rows that are controls."""
        return controls(self.rows)

    def lineage(self, name: str) -> list[str]:
        """The iteration and its ancestors, oldest first, the base left out; see ``lineage.lineage``."""
        return lineage(self.iterations, name)

    def check_rows(self, own: str) -> None:
        """Refuse rows that do not fit each other or the iterations.

        Args:
            own: the set of an iteration's data that its row learns.

        Raises:
            ValueError: names the key and what to write.
        """
        rows, iterations = self.rows, self.iterations
        check_names({"rows": rows}, RESERVED)
        for key in iterations:
            if key == BASE or key not in rows:
                said = (
                    "is the name of the warm start; choose another name"
                    if key == BASE
                    else f"has no row; add rows.{key}"
                )
                raise ValueError(f"iterations.{key}: {said}")
            self.lineage(key)
        if BASE not in rows:
            raise ValueError("rows: 'base', the warm start, is missing; add it")
        _expect(
            "base",
            rows[BASE],
            "the warm start",
            {"init": (START,), "source": (BASE,), "data": ("examples",), "match": (NONE,)},
        )
        for key, row in rows.items():
            if key in iterations:
                parent = iterations[key].init
                inits = tuple(dict.fromkeys((parent, BASE)))
                kept = {"init": inits, "source": (key,), "data": (own,), "match": (NONE,)}
                _expect(key, row, "an iteration's row", kept)
            elif key != BASE:
                if row.match == NONE:
                    raise ValueError(
                        f"rows.{key}.match: is none, but iterations has no {key!r}; add it there, or name the "
                        "iteration whose token count this control matches"
                    )
                check_known(f"rows.{key}.match", "iteration", row.match, iterations)
                check_known(f"rows.{key}.source", "data of", row.source, [BASE, *iterations])
                _expect(key, row, "a control", {"init": (BASE,)})
                if row.data != "examples" if row.source == BASE else own != "examples" == row.data:
                    raise ValueError(f"rows.{key}.data: {row.source} has no data set {row.data!r}; name another")


def _expect(key: str, row: Any, kind: str, wanted: Mapping[str, tuple[str, ...]]) -> None:
    for name, values in wanted.items():
        if getattr(row, name) not in values:
            said = " or ".join(repr(value) for value in values)
            raise ValueError(f"rows.{key}.{name}: is {getattr(row, name)!r}, but must be {said} for {kind}")
