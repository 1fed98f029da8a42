"""The rows of a results table: the weights and data each is trained from, and the checks shared by all methods.

A row is trained by ``<method>-finetune@<row>`` and evaluated by ``<method>-evaluate@<row>``. ``base``: the warm start.
A row with an entry of the same name in ``iterations`` is trained on that iteration's data. All other rows are controls.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import Field

from selfimprove.core.params import Section
from selfimprove.methods.lineage import check_known, check_names, lineage
from selfimprove.methods.trained import Trained
from selfimprove.training.config import FinetuneParams

BASE, START, NONE = "base", "start", "none"
"""The warm start's row, the model it is initialised from (built by ``base@<method>``), and the value for "no row"."""
RESERVED = (START, NONE, "tasks")
"""Names of folders beside the rows' folders; no row may use them."""


class TrainedRow(Section):
    """One row. dvc.yaml reads every key except ``train``, so each must be present, even if its value is ``none``."""

    init: str = Field(description="row that provides the initial weights; start: the model in section base")
    source: str = Field(description="origin of the training data: base (the demonstrations) or an iteration")
    match: str = Field(
        description="for a control: the iteration whose number of tokens it matches, with those of the rows between "
        "the base and it; otherwise none"
    )


R = TypeVar("R", bound=Any)  # has a `match`


def controls(rows: Mapping[str, R]) -> dict[str, R]:
    """The rows that are controls."""
    return {name: row for name, row in rows.items() if row.match != NONE}


class Iterated(Trained):
    """Parameters of a method whose iterations start from a base."""

    train: FinetuneParams = Field(default=FinetuneParams(), description="defaults of every row's training")
    rows: dict[str, Any]
    iterations: dict[str, Any]

    @classmethod
    def takers(cls, section: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
        return {"rows.*.train?": ("train",)}

    @property
    def controls(self) -> dict[str, Any]:
        """The rows that are controls."""
        return controls(self.rows)

    def lineage(self, name: str) -> list[str]:
        """The iteration and its ancestors, oldest first, without the base; see ``lineage.lineage``."""
        return lineage(self.iterations, name)

    def check_rows(self, own: str) -> None:
        """Check that the rows are consistent with each other and with the iterations.

        Args:
            own: the data set of an iteration that the iteration's own row is trained on.

        Raises:
            ValueError: names the key and the value it should have.
        """
        rows, iterations = self.rows, self.iterations
        check_names({"rows": rows}, RESERVED)
        for key in iterations:
            if key == BASE:
                raise ValueError(f"iterations.{key}: is the name of the warm start; choose another name")
            if key not in rows:
                raise ValueError(f"iterations.{key}: has no row; add rows.{key}")
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
