"""Which method can play which environment, according to the registry; writes the table in docs/environments.md.

    cell("agent_r", TextCraftParams)  ->  Cell(True, "own")
    cell("agent_r", TaxiParams)       ->  Cell(True, "commands instead of labels")
    cell("reflect_rl", MathParams)    ->  Cell(False, "no actions that can be listed")

``python -m selfimprove.envs.matrix`` (``make docs``) writes the table; a test runs every possible cell.
"""

from pathlib import Path
from typing import NamedTuple

from selfimprove.core.pages import between, markdown
from selfimprove.core.publish import write_text
from selfimprove.envs.params import AnswerParams, EnvParams, OwnAnswerParams, OwnTextParams, TextParams
from selfimprove.envs.qa.world import OwnQuestionParams
from selfimprove.envs.registry import KINDS, adapter, lacks, named

PAGE = Path("docs/environments.md")
BEGIN, END = "<!-- matrix: `make docs` -->\n", "<!-- end of matrix -->\n"

TITLES = {"rise": "RISE", "agent_r": "Agent-R", "reflect_rl": "Reflect-RL", "spin": "SPIN"}
YOURS: dict[str, type[EnvParams]] = {"TextEnv": OwnTextParams, "Answers": OwnAnswerParams, "Facts": OwnQuestionParams}
"""User-defined environments, by their base class."""

OWNED = "own"
"""The table's entry if the method's paper plays the environment."""

DIRECT: dict[tuple[str, type[EnvParams]], str] = {
    ("rise", AnswerParams): "as it is",
    ("agent_r", TextParams): "as it is",
    ("spin", TextParams): "rounds of thought and action",
    ("spin", AnswerParams): "plain SPIN, one reply",
}
"""How a method plays environments of a kind without an adapter if its paper does not play them."""


class Cell(NamedTuple):
    """Whether a method can play an environment, and a phrase that states how or why not."""

    possible: bool
    said: str


def cell(method: str, one: type[EnvParams]) -> Cell:
    """One cell of the table."""
    if one.paper == method and one not in YOURS.values():
        return Cell(True, OWNED)
    for (player, kind), how in DIRECT.items():
        if player == method and issubclass(one, kind):
            return Cell(True, how)
    by = adapter(KINDS[method], one)
    return Cell(True, by.how) if by else Cell(False, f"no {lacks(KINDS[method], one)}")


def cells() -> dict[tuple[str, str], Cell]:
    """(method, name) -> cell, for every environment in the registry."""
    return {(method, name): cell(method, one) for name, one in _rows().items() for method in TITLES}


def _rows() -> dict[str, type[EnvParams]]:
    papers = [*TITLES, ""]
    return dict(sorted(named(EnvParams).items(), key=lambda item: papers.index(item[1].paper)))


def table() -> str:
    """The table in Markdown."""
    lines = [
        [f"your `{name}`" if name in YOURS else f"`{name}`", *(_shown(cell(method, one)) for method in TITLES)]
        for name, one in (_rows() | YOURS).items()
    ]
    return markdown(["environment", *TITLES.values()], lines)


def _shown(one: Cell) -> str:
    if one.said == OWNED:
        return f"**{one.said}**"
    return one.said if one.possible else f"– ({one.said})"


def with_table(page: str) -> str:
    """The page with the current table."""
    return between(page, BEGIN, END, table())


if __name__ == "__main__":
    write_text(PAGE, with_table(PAGE.read_text(encoding="utf-8")))
