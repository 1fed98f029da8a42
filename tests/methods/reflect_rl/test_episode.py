"""The commands that an episode records."""

from __future__ import annotations

from pathlib import Path

import pytest

from selfimprove.envs.labels import oracle_label
from selfimprove.methods.reflect_rl.episode import RLEpisode, RLStep, taken, trajectory
from selfimprove.methods.reflect_rl.rl_config import RLParams
from selfimprove.methods.reflect_rl.rl_replay import Replay
from selfimprove.methods.reflect_rl.rl_totals import summary_of
from tests.envs.labelled_worlds import all_three


@pytest.mark.parametrize("text", ["{label}", " {label}", "{label}.", "{label}. and so on", "{command}", "no such"])
def test_the_executed_command_is_recorded_whatever_text_selected_it(tmp_path: Path, text: str) -> None:
    for env in all_three(tmp_path):
        task = env.task_ids()[0]
        env.reset(task)
        label = oracle_label(env)
        assert label is not None
        wanted = env.commands()[label]
        command, played = taken(env, task, text.format(label=label, command=wanted))
        assert command == (wanted if played.valid else None)
        assert played.valid == (text == "{label}" or (env.name != "alfworld" and text != "no such"))


def test_decisions_were_chosen_among_all_labels_unless_those_not_listed_were_masked() -> None:
    step = RLStep(prompt="", label="0", cost=1.0, logprob=-0.5, entropy=0.1, labels=("0",), token=7, prompt_ids=[1])
    played = RLEpisode(id="", env="taxi", task_id=0, status="solved", steps=[step], seed="")
    ids = {"0": 7, "1": 9}
    allowed = [trajectory(played, ids, masked).decisions[0].allowed for masked in (False, True)]
    assert allowed == [[7, 9], [7]]


def test_success_cost_and_replay_leave_the_entropies_out() -> None:
    step = RLStep(prompt="", label="0", cost=1.0, logprob=-0.5, entropy=0.1, labels=("0",), token=7, prompt_ids=[1])
    failed = RLEpisode(id="", env="taxi", task_id=0, status="unsolved", steps=[step], seed="")
    summary = summary_of(failed, {"0": 7}, RLParams(entropy_coef=100.0), tell=True)
    assert [row["Q_value"] for row in summary.detail] == [pytest.approx(-9)]
    assert (summary.cost, summary.success) == (1.0, False)
    assert summary.trajectory is not None
    replay = Replay(5)
    replay.add([summary.trajectory])
    assert not replay.sample(1)


@pytest.mark.parametrize(("reflection", "read"), [("It is near.", 6), ("", 3), (None, 3)])
def test_a_prompt_counts_twice_where_the_reflection_model_read_it_too(reflection: str | None, read: int) -> None:
    step = RLStep(
        prompt="", reflection=reflection, label="0", cost=1.0, logprob=-0.5, entropy=0.1, labels=("0",), token=7,
        prompt_ids=[1, 2, 3],
    )  # fmt: skip
    played = RLEpisode(id="", env="taxi", task_id=0, status="solved", steps=[step], seed="")
    assert summary_of(played, {"0": 7}, RLParams(), tell=False).read == read
