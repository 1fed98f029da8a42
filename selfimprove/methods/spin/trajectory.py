"""Converts episodes to and from the original's trajectory JSON, as shown in its README (docs/spin.md, S42).

::

    {"3687": {"reward": false, "em": false, "f1": 0, "gt": "beyond clouds", "pred": "fugitive", "prompt": "",
              "traj": "Below is an instruction … reward = False\\n", "traj_by_line": ["Below is …", …, ""],
              "finished": true, "steps": 2, "iteration": "iter0"}}

``finished``, ``steps`` and ``iteration`` are our additions, and ``blocked`` of an episode that an engine or environment
cut short. An unfinished episode is written with reward false and pred "", whereas the original loses it. Without
evaluation reward, em and f1 are null.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from selfimprove.core.errors import UserError
from selfimprove.core.records import load_json
from selfimprove.methods.spin.parse import STOP
from selfimprove.methods.spin.play import SpinEpisode
from selfimprove.methods.spin.prompts import CUE, heading, is_flat


def few_shot_of(episode: SpinEpisode) -> str:
    """The worked episodes at the start of the prompt, or ""."""
    if not is_flat(episode.form):
        return episode.prompt[0].content if len(episode.prompt) > 1 else ""
    return episode.prompt[0].content.removesuffix(heading(episode.question, episode.form)).rstrip()


def trajectory(episode: SpinEpisode) -> str:
    """Wrapper or question line, then all rounds; the terminal observation contains the reward."""
    form = episode.form if is_flat(episode.form) else "question"
    lines = [heading(episode.question, form).removesuffix("\n")]
    for number, entry in enumerate(episode.rounds):
        over = number == len(episode.rounds) - 1 and (episode.finished or entry.failed)
        seen = f"Episode finished, reward = {reward_of(episode)}" if over else entry.observation
        lines += [f"{CUE} {entry.thought}", f"Action: {entry.action}", f"{STOP.strip()} {seen}"]
    return "\n".join(lines) + "\n"


def reward_of(episode: SpinEpisode) -> bool | None:
    """True or False, or None if the episode was not scored."""
    return None if episode.reward is None else episode.reward == 1


def to_entry(episode: SpinEpisode) -> dict[str, Any]:
    """One value of the trajectory file."""
    text = trajectory(episode)
    return {
        "reward": reward_of(episode),
        "em": None if episode.reward is None else episode.em,
        "f1": None if episode.reward is None else episode.f1 or 0,
        "gt": episode.gt,
        "pred": episode.pred,
        "prompt": few_shot_of(episode),
        "traj": text,
        "traj_by_line": text.split("\n"),
        "finished": episode.finished,
        "steps": len(episode.rounds),
        "iteration": episode.iteration,
        **({"blocked": True} if episode.status == "blocked" else {}),
    }


def to_json(episodes: Sequence[SpinEpisode]) -> dict[str, Any]:
    """The trajectory file of one run, keyed by task index, in playing order.

    Raises:
        UserError: two episodes have the same task index (several runs or joined splits), or one is plain SPIN's.
    """
    entries: dict[str, Any] = {}
    for episode in episodes:
        if episode.form == "reply":
            raise UserError(
                f"task {episode.index}: plain SPIN's answers have no rounds, so they have no trajectory; export the "
                "pairs instead."
            )
        if str(episode.index) in entries:
            raise UserError(
                f"task {episode.index} was played more than once, but a trajectory file holds one episode per task; "
                "write each run to its own file."
            )
        entries[str(episode.index)] = to_entry(episode)
    return entries


def read_trajectories(path: Path) -> dict[str, dict[str, Any]]:
    """Read any trajectory file: key -> entry.

    Raises:
        UserError: the file is missing, is not JSON or has no episode, or an entry has no ``traj``.
    """
    value = load_json(path)
    if not isinstance(value, dict):
        raise UserError(f"{path}: expected an object that maps task indices to episodes; name a trajectory file.")
    if not value:
        raise UserError(f"{path} contains no episodes; name a trajectory file that has some.")
    for key, entry in value.items():
        if not isinstance(entry, dict) or not isinstance(entry.get("traj"), (str, list)):
            raise UserError(f"{path}, task {key}: no 'traj'; fix or delete the entry.")
    return value
