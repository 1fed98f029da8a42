"""Draws the tasks of each split from those that an environment has: by the run's seed, disjoint.

Every method that draws here has the same dev and test split of an environment if it asks for as many tasks of them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from selfimprove.core.errors import UserError
from selfimprove.core.seeds import rng

Part = Literal["train", "dev", "test"]


class HeldOut(list[int]):
    """Tasks of one environment in parts that share no content; dev and test are drawn from the parts of that name.

    Demonstrations are drawn from the part ``train``, as training tasks are.

    Attributes:
        of: part -> its tasks.
        more: what to do for more of them, for the message that there are too few.
    """

    def __init__(self, of: Mapping[Part, Sequence[int]], more: str) -> None:
        super().__init__(task for tasks in of.values() for task in tasks)
        self.of, self.more = of, more


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
        for k, (env, tasks) in enumerate(ids.of.items()):
            its = [(name, apportioned(count, ids.shares)[k]) for name, count in counts]
            parts.append(draw_in_order(env, tasks, its, seed=seed, where=where))
        return {name: _spread([part[name] for part in parts]) for name, _ in counts}
    if isinstance(ids, HeldOut):
        found: dict[str, list[int]] = {}
        for part, tasks in ids.of.items():
            its = [(name, count) for name, count in counts if (name if name in ("dev", "test") else "train") == part]
            found |= _drawn(env_name, tasks, its, seed, where, f"the {len(tasks)} for {part}", f", or {ids.more}")
        return {name: found[name] for name, _ in counts}
    return _drawn(env_name, ids, counts, seed, where, str(len(ids)), "")


def _drawn(
    env_name: str, ids: Sequence[int], counts: Sequence[tuple[str, int]], seed: int, where: str, all_of: str, more: str
) -> dict[str, list[int]]:
    """Splits of one shuffle, in turn. ``all_of``, ``more``: for the message that there are too few."""
    drawn = list(ids)
    rng("panels", seed, env_name, "+".join(name for name, _ in counts)).shuffle(drawn)
    splits, start = {}, 0
    for name, count in counts:
        if start + count > len(drawn):
            raise UserError(
                f"{where}.{name}: {count} tasks of {env_name} are requested, but {len(drawn) - start} of {all_of} are "
                f"left; request fewer{more}."
            )
        splits[name] = drawn[start : start + count]
        start += count
    return splits


def with_each(ids: Sequence[int], change: Callable[[Sequence[int]], Sequence[int]]) -> Sequence[int]:
    """``ids`` after a change of each list of them: what is held out stays so, and so do the shares."""
    if isinstance(ids, HeldOut):
        return HeldOut({part: change(tasks) for part, tasks in ids.of.items()}, ids.more)
    if isinstance(ids, Shared):
        return Shared({env: with_each(tasks, change) for env, tasks in ids.of.items()}, ids.shares)
    return change(ids)


def beside(ids: Sequence[int], task: int) -> Sequence[int]:
    """The tasks of the part that a task belongs to; all where nothing is held out."""
    if isinstance(ids, HeldOut):
        return next(tasks for tasks in ids.of.values() if task in tasks)
    return ids


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
