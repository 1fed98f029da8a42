"""Draws the tasks of each split from those that an environment has: by the run's seed, disjoint.

Every method that draws here has the same dev and test split of an environment if it asks for as many tasks of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from selfimprove.core.errors import UserError
from selfimprove.core.seeds import rng

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
    """As ``draw_splits``, the splits in the order given, which is part of the draw."""
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
