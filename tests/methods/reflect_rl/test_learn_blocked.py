"""Reinforcement learning that cannot go on: a broken environment, no GPU; and what its report counts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from selfimprove.core.errors import UserError
from selfimprove.envs.interface import CutState, EnvError, Played, State
from selfimprove.methods.reflect_rl.learn import learn
from tests.methods.reflect_rl.corridor import Corridor
from tests.methods.reflect_rl.test_learn import make_job, params


class Broken(Corridor):
    """Fails at the first step of tasks from ``healthy`` on; its states have one action without a label."""

    def __init__(self, healthy: int) -> None:
        super().__init__()
        self._healthy = healthy

    def state(self) -> State:
        state = CutState(*super().state())
        state.without_label = 1
        return state

    def step(self, label: str) -> Played:
        if self._now[0] >= self._healthy:
            raise EnvError("the game has crashed")
        return super().step(label)


def test_a_run_ends_when_too_many_of_its_episodes_are_blocked(folder: Path, tmp_path: Path) -> None:
    cfg = params(max_steps=3, curriculum=False)
    job = make_job(folder, tmp_path, cfg, env=Broken(0), max_blocked=0.4)
    with pytest.raises(
        UserError, match=r"12 of the 12 episodes so far .* the game has crashed\. run\.max_blocked .*0\.4"
    ):
        learn(job)
    assert not job.out_dir.exists()


def test_the_limit_of_blocked_episodes_holds_for_a_run_that_its_token_budget_ends(folder: Path, tmp_path: Path) -> None:
    cfg = params(max_steps=100, curriculum=False, max_train_tokens=1)
    with pytest.raises(UserError, match=r"of the 6 episodes so far are blocked"):
        learn(make_job(folder, tmp_path, cfg, env=Broken(2), max_blocked=0.1))


def test_a_report_counts_blocked_episodes_and_states_with_more_actions_than_labels(
    folder: Path, tmp_path: Path
) -> None:
    report = learn(make_job(folder, tmp_path, params(max_steps=2, curriculum=False), env=Broken(2), max_blocked=0.9))
    assert 0 < report.blocked < report.episodes
    assert report.unlisted_actions == report.decisions > 0


def test_reinforcement_learning_on_a_gpu_that_is_not_there_is_refused(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match=r"^rl\.device: cuda, but torch finds no GPU here"):
        learn(make_job(folder, tmp_path, params(device="cuda")))
