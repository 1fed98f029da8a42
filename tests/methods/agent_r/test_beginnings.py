"""Bad beginnings: the start of a failure, never of a success, and never all of it."""

from __future__ import annotations

from selfimprove.methods.agent_r.beginnings import bad_beginning
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
