"""Bad beginnings for the revision evaluation (spec §2; the paper's Table 3): fixed replies to go on from."""

from __future__ import annotations

from collections.abc import Sequence

from selfimprove.records import Episode, Record


class Beginning(Record):
    """What a file of bad beginnings has in a line: a task, and the replies to go on from."""

    task_id: int
    replies: list[str]


def bad_beginning(episode: Episode, most: int) -> list[str]:
    """The first ``most`` replies of a failed episode, as many as there are but the last; [] if it did not fail.

    The original has a function that executes a given list of bad replies, and publishes no list. Ours are a model's own
    failures, which end early enough that there is something left to mend: at least one reply is the model's to give.
    """
    if episode.status != "unsolved":
        return []
    replies = [turn.attempt.text for turn in episode.turns]
    return replies[: min(most, len(replies) - 1)]


def bad_beginnings(panel: Sequence[int], episodes: Sequence[Episode], most: int) -> list[Beginning]:
    """Those of a model's episodes, one a task of ``panel``, that failed."""
    return [
        Beginning(task_id=task, replies=replies)
        for task, episode in zip(panel, episodes, strict=True)
        if (replies := bad_beginning(episode, most))
    ]
