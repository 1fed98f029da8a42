"""Bad beginnings for the revision evaluation: fixed replies that a model continues from (docs/agent-r.md, A31)."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from selfimprove.core.errors import UserError
from selfimprove.core.records import Episode, Record, read_jsonl


class Beginning(Record):
    """A line of a file of bad beginnings: a task and the replies to continue from."""

    task_id: int
    replies: list[str]


def beginning_of(task_id: int) -> Beginning:
    """A beginning without replies: the task from its start."""
    return Beginning(task_id=task_id, replies=[])


def read_beginnings(path: Path, known: Sequence[int]) -> list[Beginning]:
    """Read a user's list of beginnings, at most one for each task.

    Args:
        known: the tasks that may occur.

    Raises:
        UserError: the file is missing, a line is malformed or has no reply, or a task occurs twice or is not in
            ``known``.
    """
    given = read_jsonl(path, Beginning)
    counts = Counter(one.task_id for one in given)
    for task, count in counts.items():
        if count > 1 or task not in known:
            what = f"occurs {count} times; keep one line" if count > 1 else "is not one of the tasks played; remove it"
            raise UserError(f"{path}: task {task} {what}.")
    for one in given:
        if not one.replies:
            raise UserError(f"{path}: task {one.task_id} has no replies to continue from; add one or remove the line.")
    return given


def bad_beginning(episode: Episode, most: int) -> list[str]:
    """The first ``most`` replies of a failed episode, never its last one; [] if it did not fail.

    The original has a function that executes a given list of bad replies but publishes no list. Ours come from a
    model's own failures, cut so that at least one more reply fits.
    """
    if episode.status != "unsolved":
        return []
    replies = [turn.attempt.text for turn in episode.turns]
    return replies[: min(most, len(replies) - 1)]


def bad_beginnings(split: Sequence[int], episodes: Sequence[Episode], most: int) -> list[Beginning]:
    """The bad beginnings of a model's failed episodes; ``episodes`` has one episode for each task of ``split``."""
    return [
        Beginning(task_id=task, replies=replies)
        for task, episode in zip(split, episodes, strict=True)
        if (replies := bad_beginning(episode, most))
    ]
