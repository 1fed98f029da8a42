"""When which tasks are played: level after level, or all from the start (spec reflect_rl §1, Curricula; row 25)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from selfimprove.envs.enumerated import EnumeratedEnv
from selfimprove.errors import UserError
from selfimprove.seeds import rng


class Phase(NamedTuple):
    """From iteration ``start`` (from 0) on, ``tasks`` are played at ``level`` ("": the environment's default)."""

    start: int
    level: str
    tasks: tuple[int, ...]


def phases(env: EnumeratedEnv, tasks: Sequence[int], max_steps: int, *, curriculum: bool) -> list[Phase]:
    """The schedule of a run of ``max_steps`` iterations.

    Levels that share out the tasks (AutoExplore's depths) get iterations in proportion to theirs, as the original does:
    level i begins at max_steps x items before it / items in all. Levels that each have all tasks (Taxi's pickup,
    dropoff, full) get equal parts.

    Raises:
        UserError: there is no task, or a level would get no iteration [R: the original then never advanced;
            §6, trap 18].
    """
    if not tasks:
        raise UserError("reflect_rl.tasks: there is no task to train on; raise tasks.train or few_data.")
    if not curriculum or env.levels == ("",):
        return [Phase(0, "", tuple(tasks))]
    groups = [(level, tuple(env.level_tasks(level, tasks))) for level in env.levels]
    groups = [(level, group) for level, group in groups if group]
    total, before = sum(len(group) for _, group in groups), 0
    found: list[Phase] = []
    for level, group in groups:
        found.append(Phase(max_steps * before // total, level, group))
        before += len(group)
    ends = [phase.start for phase in found[1:]] + [max_steps]
    for phase, end in zip(found, ends, strict=True):
        if phase.start >= end:
            raise UserError(
                f"rl.max_steps: {max_steps} iterations leave none for level {phase.level!r} ({len(phase.tasks)} of "
                f"{total} items); raise max_steps, merge levels, or set rl.curriculum: false."
            )
    return found


def phase_at(schedule: Sequence[Phase], iteration: int) -> int:
    """Index of the phase that an iteration belongs to."""
    return max(index for index, phase in enumerate(schedule) if phase.start <= iteration)


def drawn(phase: Phase, place: int, seed: int) -> int:
    """The task at a place of the phase's stream: its tasks pass by after pass, each pass shuffled anew."""
    turn, index = divmod(place, len(phase.tasks))
    order = list(phase.tasks)
    rng("tasks", seed, phase.level, turn).shuffle(order)
    return order[index]
