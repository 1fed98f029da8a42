"""The schedule of tasks: level after level, or all from the start (docs/reflect-rl.md, L25)."""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from selfimprove.core.errors import UserError
from selfimprove.core.seeds import rng
from selfimprove.envs.interface import EnumeratedEnv


class Phase(NamedTuple):
    """From round ``start`` (0-based) on, ``tasks`` are played at ``level`` ("": the environment's default)."""

    start: int
    level: str
    tasks: tuple[int, ...]


def phases(env: EnumeratedEnv, tasks: Sequence[int], max_steps: int, *, curriculum: bool) -> list[Phase]:
    """The schedule of a run of ``max_steps`` iterations.

    If levels partition the tasks (AutoExplore's depths), each task gets a whole number of iterations, as in the
    original: level i starts at (max_steps // items) x items before it, and the remainder of the division goes to the
    last level. If every level has all tasks (Taxi's pickup, dropoff, full), levels get equal parts. If there is only
    one level (``env.curriculum_index``), it is the whole run, with or without a curriculum.

    Raises:
        UserError: there is no task (of the only level), fewer than one round per task of a partition, or a level
            without rounds (the original then never advances).
    """
    if not tasks:
        raise UserError("reflect_rl.tasks: there are no tasks to train on; raise tasks.train or few_data.")
    if (not curriculum and len(env.levels) > 1) or env.levels == ("",):
        return [Phase(0, "", tuple(tasks))]
    groups = [(level, tuple(env.level_tasks(level, tasks))) for level in env.levels]
    groups = [(level, group) for level, group in groups if group]
    if not groups:
        raise UserError(
            f"reflect_rl.tasks: there are no tasks of level {env.levels[0]!r} to train on; raise tasks.train or "
            "few_data, or choose another env.curriculum_index."
        )
    total = sum(len(group) for _, group in groups)
    starts = [max_steps * i // len(groups) for i in range(len(groups))]
    if len(groups) > 1 and total == len({task for _, group in groups for task in group}):  # no task in two levels
        a_task = max_steps // total
        if not a_task:
            raise UserError(
                f"rl.max_steps: {max_steps} rounds are fewer than the {total} tasks of the curriculum; "
                "raise max_steps, train on fewer tasks (tasks.train), or set rl.curriculum: false."
            )
        starts = [a_task * before for before in accumulate((len(group) for _, group in groups[:-1]), initial=0)]
    found = [Phase(start, level, group) for start, (level, group) in zip(starts, groups, strict=True)]
    ends = [phase.start for phase in found[1:]] + [max_steps]
    for phase, end in zip(found, ends, strict=True):
        if phase.start >= end:
            raise UserError(
                f"rl.max_steps: {max_steps} rounds leave none for level {phase.level!r} ({len(phase.tasks)} of "
                f"{total} tasks); raise max_steps, merge levels, or set rl.curriculum: false."
            )
    return found


def phase_at(schedule: Sequence[Phase], iteration: int) -> int:
    """Index of the phase that contains a round."""
    return max(index for index, phase in enumerate(schedule) if phase.start <= iteration)


def drawn(phase: Phase, place: int, seed: int) -> int:
    """The task at index ``place`` of the phase's stream, which repeats the tasks in a new random order each pass."""
    turn, index = divmod(place, len(phase.tasks))
    order = list(phase.tasks)
    rng("tasks", seed, phase.level, turn).shuffle(order)
    return order[index]
