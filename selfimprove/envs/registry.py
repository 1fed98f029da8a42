"""Finds an environment by its name in the params."""

from __future__ import annotations

from pathlib import Path

from selfimprove.envs.enumerated_params import EnvParams
from selfimprove.envs.interface import EnumeratedEnv
from selfimprove.envs.labels import LABELS, Spelling


def instruction_of(name: str) -> str:
    """What stands before a state that is reflected on, by the environment's name, without making one."""
    if name != "taxi":
        return ""
    from selfimprove.envs.taxi.listed import INSTRUCTION

    return INSTRUCTION


def spelling(params: EnvParams) -> Spelling:
    """The environment's name and labels, without making one."""
    if params.name != "taxi":
        return Spelling(params.name, LABELS[params.labels])
    from selfimprove.envs.taxi.env import LABELS as NUMBERS

    return Spelling(params.name, NUMBERS)


def make_enumerated(params: EnvParams, tasks: Path | None = None, *, training: bool = False) -> EnumeratedEnv:
    """The environment of the params.

    Args:
        tasks: the folder that reflect_rl-data wrote (AutoExplore: its tasks.json is played); None: made anew.
        training: whether AutoExplore hides entries with ``leaveout_prob``; evaluation never does.

    Raises:
        UserError: what the environment needs is missing or wrong.
    """
    if params.name == "taxi":
        from selfimprove.envs.taxi.listed import EnumeratedTaxi

        return EnumeratedTaxi(params.mode, params.horizon, params.with_history, params.curriculum_index)
    if params.name == "autoexplore":
        from selfimprove.envs.autoexplore.listed import make_autoexplore

        return make_autoexplore(params, tasks, training=training)
    from selfimprove.envs.alfworld.listed import make_alfworld

    return make_alfworld(params)
