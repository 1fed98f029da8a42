"""Bad beginnings: the start of a failure, never of a success, and never all of it."""

from __future__ import annotations

from selfimprove.methods.agent_r.beginnings import Beginning, bad_beginning, bad_beginnings
from selfimprove.records import Attempt, Episode, Status, Turn


def episode(status: Status, replies: int) -> Episode:
    turns = [
        Turn(model="actor", attempts=[Attempt(text=f"Action: {i}", reward=0.0)], chosen=0, observation="no")
        for i in range(replies)
    ]
    return Episode(id="e", env="textcraft", query="q", gold="", prompt=[], turns=turns, status=status, seed="1/e")


def test_agent_r_34_a_bad_beginning_is_the_start_of_a_failed_episode_and_leaves_a_reply_to_give() -> None:
    assert bad_beginning(episode("unsolved", 8), 3) == ["Action: 0", "Action: 1", "Action: 2"]
    assert bad_beginning(episode("unsolved", 3), 3) == ["Action: 0", "Action: 1"]
    assert bad_beginning(episode("unsolved", 1), 3) == []
    assert bad_beginning(episode("solved", 8), 3) == []
    assert bad_beginning(episode("blocked", 8), 3) == []


def test_agent_r_34_every_model_goes_on_from_the_failures_of_one() -> None:
    played = [episode("unsolved", 8), episode("solved", 8), episode("unsolved", 1), episode("unsolved", 2)]
    assert bad_beginnings([7, 8, 9, 10], played, 2) == [
        Beginning(task_id=7, replies=["Action: 0", "Action: 1"]), Beginning(task_id=10, replies=["Action: 0"]),
    ]  # fmt: skip
