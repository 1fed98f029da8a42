"""``make dag METHOD=rise``: a method's stages in an executable order, each with the stages it depends on.

``dvc dag`` draws all stages of all methods in one picture, some seven thousand columns wide.
"""

import sys
import textwrap
from collections.abc import Mapping, Sequence

from selfimprove.core.cli import one_sentence
from selfimprove.core.errors import UserError, first_line
from selfimprove.pipeline.overall import ALWAYS
from selfimprove.pipeline.params import METHODS
from selfimprove.pipeline.recorded import GRAPH, of_method

WIDTH = 100


def needs() -> dict[str, list[str]]:
    """Stage -> the stages that it needs directly, as DVC reads them from dvc.yaml; each after those it needs.

    Raises:
        UserError: there is no dvc.yaml, or DVC refuses it or its own config.
    """
    import networkx as nx
    from dvc.config import ConfigError
    from dvc.exceptions import DvcException
    from dvc.repo import Repo

    if not GRAPH.is_file():
        raise UserError("dvc.yaml does not exist; run this in the repository's root, or `git restore dvc.yaml`.")
    try:
        graph = Repo().index.graph
    except ConfigError as error:
        raise UserError(
            f"DVC cannot read its config ({first_line(error).rstrip('.')}); fix .dvc/config or .dvc/config.local."
        ) from None
    except DvcException as error:
        raise UserError(f"DVC refuses dvc.yaml ({first_line(error)}); correct it, or `git restore dvc.yaml`.") from None
    order = nx.lexicographical_topological_sort(graph.reverse(), key=lambda stage: stage.addressing)
    return {stage.addressing: sorted(one.addressing for one in graph.successors(stage)) for stage in order}


def picture(method: str, found: Mapping[str, Sequence[str]]) -> str:
    """The text for one method. Stages that all others depend on (hashes of code and files) are omitted."""
    mine = [name for name in found if of_method(name, method)]
    column = max(map(len, mine), default=0) + 2
    lines = [f"{method}: {len(mine)} stages; ← the stages each depends on, besides {ALWAYS}", ""]
    for name in mine:
        width = WIDTH - column - 4
        kinds = _together([one for one in found[name] if one != ALWAYS])
        # A list that is longer than a line is broken between its names, never inside one.
        inner = ", ".join(kind if len(kind) < width else kind.replace(",", ", ") for kind in kinds)
        wrapped = textwrap.wrap(inner, width, break_long_words=False, break_on_hyphens=False) or [""]
        lines.append(f"  {name:{column}}{'← ' if inner else ''}{wrapped[0]}".rstrip())
        lines += [" " * (column + 4) + more for more in wrapped[1:]]
    return "\n".join(lines)


def _together(names: Sequence[str]) -> list[str]:
    """Stages of one kind merged into one word: ``rise-finetune@{iter1,iter2}``."""
    kinds: dict[str, list[str]] = {}
    for name in names:
        kind, _, item = name.partition("@")
        kinds.setdefault(kind, []).append(item)
    several = {kind: f"@{{{','.join(items)}}}" for kind, items in kinds.items() if len(items) > 1}
    return [kind + several.get(kind, f"@{items[0]}" if items[0] else "") for kind, items in kinds.items()]


@one_sentence()
def main() -> None:
    """Arguments: a method; none: all four."""
    found = needs()
    print("\n\n".join(picture(method, found) for method in sys.argv[1:] or METHODS))


if __name__ == "__main__":
    main()
