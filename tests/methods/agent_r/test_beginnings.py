"""Bad beginnings: the first replies of a failed episode, never of a solved one, and never all of them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from selfimprove.core.errors import UserError
from selfimprove.core.records import Attempt, Episode, Status, Turn, read_jsonl, read_rows, write_rows
from selfimprove.methods.agent_r.beginnings import Beginning, bad_beginning, bad_beginnings, read_beginnings
from selfimprove.methods.agent_r.params import EvaluateParams
from selfimprove.methods.agent_r.tree import Tree
from stages.agent_r import beginnings
from tests.pipeline.workbench import Workbench


def episode(status: Status, replies: int) -> Episode:
    turns = [
        Turn(model="actor", attempts=[Attempt(text=f"Action: {i}", reward=0.0)], chosen=0, observation="no")
        for i in range(replies)
    ]
    return Episode(id="e", env="textcraft", query="q", gold="", prompt=[], turns=turns, status=status, seed="1/e")


def test_a_bad_beginning_is_the_start_of_a_failed_episode_without_its_last_reply() -> None:
    assert bad_beginning(episode("unsolved", 8), 3) == ["Action: 0", "Action: 1", "Action: 2"]
    assert bad_beginning(episode("unsolved", 3), 3) == ["Action: 0", "Action: 1"]
    assert bad_beginning(episode("unsolved", 1), 3) == []
    assert bad_beginning(episode("solved", 8), 3) == []
    assert bad_beginning(episode("blocked", 8), 3) == []


def test_bad_beginnings_come_from_the_failed_episodes_with_at_least_two_replies() -> None:
    played = [episode("unsolved", 8), episode("solved", 8), episode("unsolved", 1), episode("unsolved", 2)]
    assert bad_beginnings([7, 8, 9, 10], played, 2) == [
        Beginning(task_id=7, replies=["Action: 0", "Action: 1"]), Beginning(task_id=10, replies=["Action: 0"]),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([{"task_id": 7, "replies": []}] * 2, "task 7 occurs 2 times"),
        ([{"task_id": 8, "replies": []}], "task 8 has no replies"),
        ([{"task_id": 9, "replies": ["a"]}], "task 9 is not one of the tasks played"),
        ([{"task_id": 7, "reply": ["a"]}], "line 1: field 'replies'"),
    ],
)
def test_an_invalid_list_of_beginnings_is_refused(tmp_path: Path, lines: list[dict[str, object]], said: str) -> None:
    write_rows(tmp_path / "list.jsonl", lines)
    with pytest.raises(UserError, match=said):
        read_beginnings(tmp_path / "list.jsonl", [7, 8])


LOOK = "Thought: I look.\nAction: inventory"


def test_trees_grow_from_the_replies_of_the_prior_file(agent_bench: Workbench, tmp_path: Path) -> None:
    trees = read_jsonl(agent_bench.folder / "data/agent_r/iter2/trees.jsonl", Tree)
    change = {"agent_r": {"iterations": {"iter2": {"generate": {"prior": "prior.jsonl"}}}}}
    folder = agent_bench.copy(tmp_path / "bench", change)
    write_rows(folder / "prior.jsonl", [{"task_id": trees[0].task_id, "replies": [LOOK]}])
    ran = agent_bench.forks.run(folder, "agent_r.generate", "iter2")
    assert ran.code == 0, ran.stderr
    first, *others = read_jsonl(folder / "data/agent_r/iter2/trees.jsonl", Tree)
    assert first.prompt[:-2] == trees[0].prompt
    assert first.prompt[-2].content == LOOK
    assert others == trees[1:]


def test_every_model_continues_from_the_user_s_list_of_beginnings(agent_bench: Workbench, tmp_path: Path) -> None:
    split = [row["task_id"] for _, row in read_rows(agent_bench.folder / "data/agent_r/tasks/test.jsonl")]
    folder = agent_bench.copy(tmp_path / "bench", {"agent_r": {"evaluate": {"beginnings": "bad.jsonl"}}})
    given = {"task_id": split[1], "replies": [LOOK]}
    write_rows(folder / "bad.jsonl", [given])
    shutil.copytree(folder / "models/agent_r/start", folder / "models/agent_r/iter2")  # another model
    agent_bench.done(folder, "agent_r.beginnings")
    assert [row for _, row in read_rows(folder / "data/agent_r/beginnings.jsonl")] == [given]
    for row in ("base", "iter2"):
        agent_bench.done(folder, "agent_r.evaluate", row)
        *whole, continued = read_jsonl(folder / f"results/agent_r/{row}/episodes.jsonl", Episode)
        assert [turn.model for turn in continued.turns] == ["given", "actor", "actor"]
        assert continued.turns[0].attempt.text == LOOK
        assert not any(turn.model == "given" for episode in whole for turn in episode.turns)


def test_beginnings_are_sampled_and_limited(agent_bench: Workbench, tmp_path: Path) -> None:
    found = []
    for seed in (1, 2):
        folder = agent_bench.copy(tmp_path / str(seed), {"run": {"seed": seed}})
        agent_bench.done(folder, "agent_r.beginnings")
        found.append([row for _, row in read_rows(folder / "data/agent_r/beginnings.jsonl")])
    assert len(found[0]) > 1
    assert found[0] != found[1]  # at temperature 0 the seed would change nothing
    folder = agent_bench.copy(tmp_path / "few", {"run": {"seed": 1}, "agent_r": {"evaluate": {"revision_tasks": 1}}})
    agent_bench.done(folder, "agent_r.beginnings")
    assert [row for _, row in read_rows(folder / "data/agent_r/beginnings.jsonl")] == found[0][:1]


def test_beginnings_are_sampled_at_temperature_1_whatever_the_evaluation_s(
    agent_bench: Workbench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[EvaluateParams] = []

    def played(stage: Any, model: Any, games: list[Beginning], cfg: EvaluateParams) -> list[Episode]:
        asked.append(cfg)
        return [episode("solved", 1) for _ in games]

    change = {"agent_r": {"evaluate": {"temperature": 0.3, "top_p": 0.5}}}
    monkeypatch.chdir(agent_bench.copy(tmp_path / "bench", change))
    monkeypatch.setattr("sys.argv", ["beginnings"])
    monkeypatch.setattr(beginnings, "played", played)
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "1")  # restored afterwards
    beginnings.main()
    assert [(cfg.temperature, cfg.top_p) for cfg in asked] == [(1.0, 1.0)]
