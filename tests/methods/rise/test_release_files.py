"""The release's files (docs/rise.md, R36): feedback on every attempt, the status of imported episodes, data sets."""

import json
from pathlib import Path
from typing import Any

import pytest

from selfimprove.core.records import Example, Message, write_jsonl
from selfimprove.interop.rise import app, from_log, to_log
from selfimprove.methods.rise.prompts import FAILURE, SUCCESS
from tests.methods.rise.episodes import QUESTION, attempt, episode
from tests.methods.rise.test_export import short_log
from tests.support.commands import ends_with

WRONG = FAILURE.format(question=QUESTION)


def test_every_right_attempt_of_a_collected_turn_is_told_that_it_is_right() -> None:
    one = episode([attempt(1, "a"), attempt(0, "b"), attempt(1, "c")])
    assert to_log([one])["0"]["turn_history"]["observations"] == {"0": [SUCCESS, WRONG, SUCCESS]}


@pytest.mark.parametrize("reward", [0, 1])
@pytest.mark.parametrize("observation", ["", WRONG], ids=["our own", "imported"])
def test_all_attempts_of_a_parallel_run_are_told_that_they_are_wrong(observation: str, reward: int) -> None:
    one = episode(attempt(reward, "a"), id="p")
    one.turns[0].attempts = [attempt(reward, "a"), attempt(0, "b"), attempt(1, "c")]
    one.turns[0].observation = observation
    history = to_log([one])["0"]["turn_history"]
    assert history["observations"] == {"0": [WRONG] * 3}
    assert history["best_observations"] == [WRONG]


def test_an_attempt_without_a_reward_gives_its_turn_no_best_reward() -> None:
    """As in a foreign log, of which one of several requests failed."""
    one = episode([attempt(None, "blocked"), attempt(0, "a")], id="p")
    entry = to_log([one])["0"]
    assert (entry["max_reward"], entry["turn_history"]["rewards"]) == (0, {"0": [None, 0]})
    assert from_log({"0": entry}, "log") == [one]


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, "solved"),
        ({"rewards": {"0": [0, 0]}, "best_rewards": [0]}, "unsolved"),
        ({"actions": {"0": ["a", "a"], "1": ["blocked"]}}, "blocked"),
        ({"rewards": {"0": [0, 1], "1": [None]}}, "blocked"),
        ({"best_actions": [], "best_rewards": [], "best_observations": [], "actions": {}, "rewards": {}}, "blocked"),
    ],
    ids=["solved", "unsolved", "a turn without a best action", "a null reward", "no turn"],
)
def test_an_original_s_episode_is_blocked_if_a_turn_failed_and_solved_if_an_attempt_is_right(
    changes: dict[str, Any], status: str
) -> None:
    (one,) = from_log(short_log(**changes), "log", "gsm8k")
    assert one.status == status


def test_our_own_episodes_keep_their_status() -> None:
    """A parallel run is solved by any of its attempts, and its first one is the chosen one, whatever its reward."""
    one = episode(attempt(0, "a"), id="p", status="solved")
    one.turns[0].attempts.append(attempt(1, "b"))
    assert from_log(to_log([one]), "log") == [one]


def test_the_command_dataset_writes_the_original_s_rows(tmp_path: Path) -> None:
    messages = [
        Message(role="system", content="s"), Message(role="user", content="q"),
        Message(role="assistant", content="ä", weight=2.5),
    ]  # fmt: skip
    write_jsonl(tmp_path / "examples.jsonl", [Example(id="identity_0", messages=messages)])
    assert ends_with(app, "dataset", tmp_path / "examples.jsonl", tmp_path / "dataset.json") == 0
    said = [("human", "s", 0.0), ("human", "q", 0.0), ("gpt", "ä", 2.5)]
    assert json.loads((tmp_path / "dataset.json").read_text()) == [
        {"id": "identity_0", "conversations": [{"from": who, "value": text, "loss": loss} for who, text, loss in said]}
    ]
