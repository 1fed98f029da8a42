"""Draws disjoint splits from an environment's tasks with the run's seed.

All methods that draw here get the same dev and test splits of an environment if they request splits of the same size.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, get_args

from selfimprove.core.errors import UserError
from selfimprove.core.seeds import rng

Part = Literal["train", "dev", "test"]


class HeldOut(list[int]):
    """Tasks of one environment in parts that share no content; dev and test are drawn from the parts of that name.

    Demonstrations and training tasks are drawn from the part ``train``.

    Attributes:
        of: part -> its tasks; all three parts, of which some may be empty.
        more: how to get more tasks, for the message that there are too few.
    """

    def __init__(self, of: Mapping[Part, Sequence[int]], more: str) -> None:
        """Raises: UserError: a part is missing, or there is another one."""
        if of.keys() != set(get_args(Part)):
            raise UserError(f"HeldOut needs the parts train, dev and test, of which some may be empty; got {list(of)}.")
        super().__init__(task for tasks in of.values() for task in tasks)
        self.of, self.more = of, more


class Shared(list[int]):
    """Tasks of several environments; every split contains a fixed share of each.

    Attributes:
        of: name -> its tasks.
        shares: the share of each environment; they add up to 1.
    """

    def __init__(self, of: Mapping[str, Sequence[int]], shares: Sequence[float]) -> None:
        super().__init__(task for tasks in of.values() for task in tasks)
        self.of, self.shares = of, shares


Split = Literal["demonstrations", "train", "dev", "test"]
ORDER: tuple[Split, ...] = ("test", "dev", "train", "demonstrations")
"""The order in which splits are drawn. A later split does not affect an earlier one."""


def draw_splits(
    env_name: str, ids: Sequence[int], counts: Mapping[str, int], *, seed: int, where: str = "tasks"
) -> dict[str, list[int]]:
    """Draw ``counts[split]`` tasks for each split.

    Args:
        where: the params that specify the counts, for the message.

    Raises:
        UserError: there are too few tasks.
    """
    return draw_in_order(env_name, ids, [(name, counts.get(name, 0)) for name in ORDER], seed=seed, where=where)


def draw_in_order(
    env_name: str, ids: Sequence[int], counts: Sequence[tuple[str, int]], *, seed: int, where: str
) -> dict[str, list[int]]:
    """As ``draw_splits``, with the splits in the order given, which affects the draw.

    With several environments, every split contains each one's share, evenly spread, so that its prefixes do as well.
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
    """Consecutive slices of one shuffle. ``all_of``, ``more``: for the message that there are too few tasks."""
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
    """Apply ``change`` to each list of ids, keeping held-out parts and shares."""
    if isinstance(ids, HeldOut):
        return HeldOut({part: change(tasks) for part, tasks in ids.of.items()}, ids.more)
    if isinstance(ids, Shared):
        return Shared({env: with_each(tasks, change) for env, tasks in ids.of.items()}, ids.shares)
    return change(ids)


def beside(ids: Sequence[int], task: int) -> Sequence[int]:
    """The tasks of the part that a task belongs to; all tasks if nothing is held out."""
    if isinstance(ids, HeldOut):
        return next(tasks for tasks in ids.of.values() if task in tasks)
    return ids


def apportioned(count: int, shares: Sequence[float]) -> list[int]:
    """Divide a count by shares that add up to 1, with the largest-remainder method; ties go to the first parts.

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
    """Merge all parts into one list, with each spread evenly."""
    placed = [((i + 0.5) / len(part), k, task) for k, part in enumerate(parts) for i, task in enumerate(part)]
    return [task for _, _, task in sorted(placed)]
