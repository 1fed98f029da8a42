"""AutoExplore with labels, depth levels and a teacher that analyses without choosing (docs/reflect-rl.md, L29 to L34).

The teacher's text in the episode of ``autoexplore/env.py``, after reading README.md first::

    README.md does not answer the task. The task speaks of events, and core sounds like that.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from functools import lru_cache

from selfimprove.core.errors import UserError
from selfimprove.core.seeds import rng
from selfimprove.envs.autoexplore.actions import choose
from selfimprove.envs.autoexplore.env import ACTED, ACTION_HEADING, AutoExplore, ExploreSnapshot
from selfimprove.envs.autoexplore.expert import occasion, plan
from selfimprove.envs.autoexplore.repos import Repo, installed_repos, open_repos
from selfimprove.envs.autoexplore.tasks import Task, depth_levels
from selfimprove.envs.interface import CutState, Last, Played, State

TASKS_FILE = "tasks.json"

_WRONG: Mapping[str, tuple[str, ...]] = {
    "cat": ("{name} does not answer the task.", "What {name} says is not what the task asks for."),
    "cd": ("That folder leads away from the answer.", "The answer does not lie that way."),
    "": ("The last command did not help.", "That brought nothing."),
}
_SEEN: Mapping[str, tuple[str, ...]] = {
    "cd ..": (
        "Nothing in this folder fits the task; the answer lies elsewhere.",
        "This folder does not lead to the answer.",
    ),
    "cd": (
        "No file here fits the task, so the answer should lie deeper, perhaps in {name}.",
        "Of the folders here, {name} may hold what the task asks for.",
    ),
    "cd, shared": (
        "The task speaks of {word}, and {name} sounds like that.",
        "{name} is the folder whose name comes nearest to {word} in the task.",
    ),
    "cat": (
        "{name} could hold the answer and has not been read.",
        "It is not known yet what is in {name}, which could be the answer.",
    ),
    "cat, shared": (
        "The task speaks of {word}, which {name} sounds like, and it has not been read.",
        "{name} sounds like {word} in the task, but what it says is not known yet.",
    ),
    "id": ("{name} has been read, and it fits the task.", "What {name} says is what the task asks for."),
}


class EnumeratedAutoExplore:
    """Implements ``EnumeratedEnv`` over an ``AutoExplore``. ``levels``: the depth curriculum's buckets of tasks."""

    name = "autoexplore"
    instruction = ""
    rules = ACTED.partition("\nAnswer each time")[0]
    decisive = "cat"

    def __init__(
        self, game: AutoExplore, labels: Sequence[str], levels: Mapping[str, frozenset[int]], level: int = -1
    ) -> None:
        """``level``: index of the only level to play; -1: all. Raises: UserError: no such level."""
        if level >= len(levels):
            raise UserError(
                f"reflect_rl.env.curriculum_index: these tasks have the levels 0 to {len(levels) - 1}, not {level}; "
                "choose one."
            )
        self._game, self.labels, self.max_turns = game, tuple(labels), game.max_turns
        self._buckets = dict(levels)
        self.levels = tuple(levels) if level < 0 else (tuple(levels)[level],)

    def task_ids(self, split: str | None = None) -> Sequence[int]:
        """Indices into the tasks. There are no splits here: the method draws them."""
        return self._game.task_ids()

    def level_tasks(self, level: str, tasks: Sequence[int]) -> list[int]:
        """See ``EnumeratedEnv``: each task belongs to exactly one level, that of its target's depth."""
        if level and level not in self._buckets:
            raise UserError(f"autoexplore has no level {level!r}; choose one of {', '.join(self._buckets)}.")
        return [task for task in tasks if not level or task in self._buckets[level]]

    def reset(self, task_id: int, episode: int = 0, level: str = "") -> State:
        """See ``EnumeratedEnv``; a level selects tasks but does not affect an episode."""
        self.level_tasks(level, ())
        self._game.reset(task_id, episode)
        return self.state()

    def state(self) -> State:
        """See ``EnumeratedEnv``; split at the last heading, since a file that was read may contain the heading, too."""
        pre, heading, actions = self._game.observation().rpartition(ACTION_HEADING)
        state = CutState(pre, heading + actions, tuple(self.commands()))
        state.without_label = self._game.unlisted()
        return state

    def commands(self) -> dict[str, str]:
        return {choice.label: choice.action.text for choice in self._game.choices()}

    def named(self, text: str) -> str | None:
        """The command that ``step`` executes for a text; None if there is none."""
        chosen = choose(self._game.choices(), text)
        return chosen.text if chosen else None

    def step(self, label: str) -> Played:
        """See ``EnumeratedEnv``; ``actions.choose`` defines which texts select a label."""
        step = self._game.step(label)
        now = self._game.snapshot()
        success = bool(step.info["success"])
        return Played(step.info["cost"], step.done, success, step.info["valid"], now.result, now.identified)

    def oracle(self) -> list[str]:
        """See ``EnumeratedEnv``; the target is read before it is identified, unless too few steps are left."""
        now = self._game.snapshot()
        if now.done:
            return []
        left = self.max_turns - now.steps
        targets = self._game.targets()
        way = plan(now.cwd, targets, now.seen, left) or plan(now.cwd, targets, now.seen, 2 * len(now.history) + 1000)
        return [action.text for action in way]

    def explain(self, last: Last | None, *key: object) -> str:
        """What is promising here and why, without choosing the command itself."""
        words = rng("autoexplore reflection", *key)
        said = []
        if last is not None and not last.helped:
            kind, _, operand = last.command.partition(" ")
            said.append(words.choice(_WRONG.get(kind, _WRONG[""])).format(name=operand))
        way = self.oracle()
        if way:
            name, _, operand = way[0].partition(" ")
            kind, word = occasion(self._game.question(), name, operand)
            said.append(words.choice(_SEEN[kind]).format(name=operand, word=word))
        return " ".join(said)

    def reveals(self, text: str) -> bool:
        """See ``EnumeratedEnv``: the teacher sees no spoiler here."""
        return False

    def snapshot(self) -> ExploreSnapshot:
        return self._game.snapshot()

    def restore(self, snapshot: ExploreSnapshot) -> None:
        self._game.restore(snapshot)

    def copy(self) -> EnumeratedAutoExplore:
        """See ``EnumeratedEnv``; shared objects are restored to the right state before each use."""
        other = copy.copy(self)
        other._game = copy.copy(self._game)
        return other


@lru_cache(maxsize=4)
def find_repositories(
    folder: str | None, packages: int, seed: int, min_files: int, max_files: int
) -> Mapping[str, Repo]:
    """The folder's repositories, or Python packages of this machine; listed once per process."""
    if folder is not None:
        return open_repos(folder)
    return installed_repos(packages, seed, min_files, max_files)


def level_names(tasks: Sequence[Task], merge_first_two: bool, merge_after_first_k: int) -> dict[str, frozenset[int]]:
    """Level -> its tasks, shallow first: ``depth0``, ``depth1``, and ``depth2-5`` for merged depths."""
    where: dict[int, list[int]] = {}
    for number, task in enumerate(tasks):
        where.setdefault(task.depth, []).append(number)
    levels = {}
    for bucket in depth_levels(tasks, merge_first_two, merge_after_first_k):
        depths = sorted({task.depth for task in bucket})
        name = f"depth{depths[0]}" if len(depths) == 1 else f"depth{depths[0]}-{depths[-1]}"
        levels[name] = frozenset(number for depth in depths for number in where[depth])
    return levels
