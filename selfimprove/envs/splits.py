"""Draws the tasks of each split from those that an environment has: by the run's seed, disjoint.

Every method that draws here has the same dev and test split of an environment if it asks for as many tasks of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from selfimprove.core.errors import UserError
from selfimprove.core.seeds import rng


class Shared(list[int]):
    """Tasks of several environments, of each of which every split takes its share.

    Attributes:
        of: name -> its tasks.
        shares: of each, which add up to 1.
    """

    def __init__(self, of: Mapping[str, Sequence[int]], shares: Sequence[float]) -> None:
        super().__init__(task for tasks in of.values() for task in tasks)
        self.of, self.shares = of, shares


Split = Literal["demonstrations", "train", "dev", "test"]
ORDER: tuple[Split, ...] = ("test", "dev", "train", "demonstrations")
"""Who draws first. A later split does not change an earlier one."""


def draw_splits(
    env_name: str, ids: Sequence[int], counts: Mapping[str, int], *, seed: int, where: str = "tasks"
) -> dict[str, list[int]]:
    """So many tasks for each split of ``counts``.

    Args:
        where: the params that ask for so many, for the message.

    Raises:
        UserError: there are fewer tasks.
    """
    return draw_in_order(env_name, ids, [(name, counts.get(name, 0)) for name in ORDER], seed=seed, where=where)


def draw_in_order(
    env_name: str, ids: Sequence[int], counts: Sequence[tuple[str, int]], *, seed: int, where: str
) -> dict[str, list[int]]:
    """As ``draw_splits``, the splits in the order given, which is part of the draw.

    Of several environments every split has each one's share, evenly spread, so that so has every beginning of it.
    """
    if isinstance(ids, Shared):
        parts = []
        for k, (part, tasks) in enumerate(ids.of.items()):
            its = [(name, apportioned(count, ids.shares)[k]) for name, count in counts]
            parts.append(draw_in_order(part, tasks, its, seed=seed, where=where))
        return {name: _spread([part[name] for part in parts]) for name, _ in counts}
    drawn = list(ids)
    rng("panels", seed, env_name, "+".join(name for name, _ in counts)).shuffle(drawn)
    splits, start = {}, 0
    for name, count in counts:
        if start + count > len(drawn):
            raise UserError(
                f"{where}.{name}: {count} tasks of {env_name} are asked for, {len(drawn) - start} are left of "
                f"{len(drawn)}; ask for fewer."
            )
        splits[name] = drawn[start : start + count]
        start += count
    return splits


def apportioned(count: int, shares: Sequence[float]) -> list[int]:
    """A count in whole parts by shares that add up to 1; what is left goes to the largest remainders, first ones first.

    >>> apportioned(10, [0.5, 0.25, 0.25])
    [5, 3, 2]
    """
    exact = [count * share for share in shares]
    parts = [int(value + 1e-9) for value in exact]
    order = sorted(range(len(shares)), key=lambda k: parts[k] - exact[k])
    for k in order[: count - sum(parts)]:
        parts[k] += 1
    return parts


def _spread(parts: Sequence[Sequence[int]]) -> list[int]:
    """All parts as one list, in which each is spread evenly."""
    placed = [((i + 0.5) / len(part), k, task) for k, part in enumerate(parts) for i, task in enumerate(part)]
    return [task for _, _, task in sorted(placed)]
