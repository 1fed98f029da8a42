"""AutoExplore: find the file that answers a question by walking through a repository (Zhou et al. 2024, Reflect-RL).

An episode (a small repository, played by the expert; the first state in full)::

    # Task
    Which file defines the class Hub, described as: Forwards events to subscribers.

    # Current working directory


    # Files under current working directory
    README.md
    core
    settings.yaml

    # Command history


    # Execution result of your last command


    # Choose from below your command
    0. cat README.md
    1. id README.md
    2. cd core
    3. cat settings.yaml
    4. id settings.yaml

    > 2
    # Current working directory
    core/
    ...
    # Execution result of your last command
    Executing: cd core
    Success: Now at core

    # Choose from below your command
    0. cd ..
    1. cat hub.py
    2. id hub.py

    > 1
    > 1                                       (the list has changed: ``hub.py`` has been read, 1 is ``id hub.py`` now)
    cost 1 + 1 + (1 - 15): found in three steps

``id`` ends the episode, right or wrong, and so does step H (docs/reflect-rl.md, L32). Rewards are expressed as costs: 1
per step; the last step costs H (15) less if a target was identified, and H more if not.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from selfimprove.core.errors import UserError
from selfimprove.core.seeds import rng
from selfimprove.envs.autoexplore.actions import LABELS, Action, Choice, can_be_listed, choose, every_action, label
from selfimprove.envs.autoexplore.expert import explain, plan
from selfimprove.envs.autoexplore.repos import Repo
from selfimprove.envs.autoexplore.sandbox import COMMANDS, Result, Sandbox, quoted
from selfimprove.envs.autoexplore.tasks import Task, cleaned_path, reachable
from selfimprove.envs.autoexplore.tree import Leaveout, View, join
from selfimprove.envs.interface import Move, Step

INSTRUCTION = """\
You explore a folder of files to find the one that a task asks for. At each step you see where you are, what is \
here, what you have done and what came of it, and a list of commands, each with a label. Answer with the label of one \
command and nothing else.
cd goes to another folder, cat shows a file, and id names a file as your answer, which ends the task: only use it once \
you are sure."""

ACTED = """\
You explore a folder of files to find the one that a task asks for. At each step you see where you are, what is \
here, what you have done and what came of it, and a list of commands. cd goes to another folder, cat shows a file, and \
id names a file as your answer, which ends the task: only use it once you are sure.
Answer each time with a thought and one action:
Thought: why
Action: the command"""
"""The instruction for written actions with a thought."""

ACTION_HEADING = "\n# Choose from below your command"
"""Separates the part of a state that the reflection model reads from the list of actions (at its last occurrence)."""

STATE = (
    "# Task\n{task}\n\n# Current working directory\n{cwd}\n\n# Files under current working directory\n{files}\n\n"
    "# Command history\n{history}\n\n# Execution result of your last command\n{result}\n"
    + ACTION_HEADING
    + "\n{actions}\n"
)

NO_COMMAND = (
    "Warning: You didn't give me any command. Further explore the repo by sending me system commands: "
    f"{', '.join((*COMMANDS, 'exit'))}."
)

FIRST_STEP_BONUS = 100.0
FOUND_BELOW = 0.01
"""Upper bound of the total cost of an episode that found its target; only ``keyword_costs`` can exceed it."""


class ExploreSnapshot(NamedTuple):
    """A snapshot. ``result``: the last command's output; ``seen``: paths read with ``cat``; ``cost``: total so far."""

    task: int
    episode: int = 0
    cwd: str = ""
    history: tuple[str, ...] = ()
    result: str = ""
    seen: tuple[str, ...] = ()
    steps: int = 0
    cost: float = 0.0
    identified: str | None = None
    success: bool = False
    done: bool = False


class AutoExplore:
    """The environment. Implements ``AgentEnv``; copies share the repositories' listings, which are immutable.

    ``tasks``: task ids are indices into them. ``repos``: by name, as in the tasks' ``root``.
    ``leaveout_prob``: the probability of leaving out each entry that no target needs (training 0.5, evaluation 0).
    ``shuffle_action``: draw labels from all ``labels``. ``easy``: the task is "Find <path>" of one target.
    ``first_step``: a bandit of one step, with cost -100 - H for the first command of the optimal path, else 1.
    ``union_targets``: files that teachers identified are also correct. ``keyword_costs``: additional costs by the first
    word of a result, such as ``{"Error": 2, "Warning": 1}``; the original defines these but never charges them.

    Draws are keyed by ``seed``, the task and the episode, so they do not depend on order.
    """

    name = "autoexplore"
    instruction = INSTRUCTION

    def __init__(
        self,
        tasks: Sequence[Task],
        repos: Mapping[str, Repo],
        *,
        max_turns: int = 15,
        leaveout_prob: float = 0.0,
        shuffle_action: bool = False,
        easy: bool = False,
        first_step: bool = False,
        union_targets: bool = False,
        keyword_costs: Mapping[str, float] | None = None,
        seed: int = 0,
        labels: Sequence[str] = LABELS,
    ) -> None:
        """Raises: UserError: no tasks, or a task's repository or target is missing or cannot be reached."""
        if not tasks:
            raise UserError("autoexplore: there are no tasks; generate some from repositories or name a task file.")
        for number, task in enumerate(tasks):
            if task.root not in repos:
                raise UserError(
                    f"task {number} refers to the repository {task.root!r}, which is missing; add it or remove the "
                    "task."
                )
            if not reachable(repos[task.root], task.filename, len(labels)):
                raise UserError(
                    f"task {number}: its target {task.filename!r} is missing from {task.root!r} (or cannot be reached "
                    "by listed commands); restore the file or remove the task."
                )
        self._tasks, self._repos = tasks, repos
        self.max_turns = max_turns
        self._leaveout_prob, self._shuffle_action = leaveout_prob, shuffle_action
        self._easy, self._first_step, self._union_targets = easy, first_step, union_targets
        self._keyword_costs = dict(keyword_costs or {})
        self._seed, self._labels = seed, tuple(labels)
        self._moment = ExploreSnapshot(-1)
        self._listed: tuple[ExploreSnapshot, list[Action]] = (self._moment, [])
        self.restore(ExploreSnapshot(0))

    def task_ids(self) -> Sequence[int]:
        return range(len(self._tasks))

    def reset(self, task_id: int, episode: int = 0) -> str:
        """Start a task; ``episode`` selects another draw of left-out entries, labels and the easy target.

        Raises:
            UserError: no such task.
        """
        if task_id not in self.task_ids():
            raise UserError(f"autoexplore has no task {task_id}; choose an id from 0 to {len(self._tasks) - 1}.")
        self.restore(ExploreSnapshot(task_id, episode))
        return self.observation()

    def step(self, action: str) -> Step:
        """Execute a currently listed label or command; any other action costs a step and changes nothing.

        ``info``: ``cost`` of this step, ``command`` (None: not understood), ``identified``, ``success``, and as
        everywhere ``raw_score`` (minus the cost so far), ``valid``, ``disaster``. The observation is the next state or,
        after the last step, the command's result.
        """
        before = self._moment
        if before.done:
            return self._step("", 0.0, None, valid=False)
        chosen = choose(self.choices(), action)
        if chosen is None:
            self._moment = before._replace(result=NO_COMMAND)
            return self._charge(NO_COMMAND, None, valid=False)
        result = self._execute(chosen)
        return self._charge(result.text, chosen, valid=result.ok)

    def _execute(self, chosen: Action) -> Result:
        """Run a command; record it, its output, and the file that it read or identified."""
        before = self._moment
        self._sandbox.cwd = before.cwd
        result = self._sandbox.run(chosen.argv)
        seen = before.seen
        if chosen.name == "cat":
            seen = (*seen, join(before.cwd, chosen.operand))
        self._moment = before._replace(
            cwd=self._sandbox.cwd,
            history=(*before.history, chosen.text),
            result=f"Executing: {chosen.text}\n{result.text}",
            seen=seen,
            identified=result.identified,
            success=result.identified in self.targets(),
        )
        return result

    def _charge(self, status: str, chosen: Action | None, valid: bool) -> Step:
        """Count a step and its cost, and decide whether the episode ends (docs/reflect-rl.md, L32)."""
        now = self._moment
        steps = now.steps + 1
        cost = 1.0 + self._keyword_costs.get(status.partition(":")[0], 0.0)
        named = chosen is not None and chosen.name == "id"
        done = self._first_step or steps >= self.max_turns or named
        task = self._tasks[now.task]
        first = cleaned_path(task.optimal_path, task.filename)[0]
        if self._first_step and chosen is not None and chosen.text == first:
            now = now._replace(success=True)
            cost = -FIRST_STEP_BONUS - self.max_turns
        elif named or steps >= self.max_turns:
            cost += -self.max_turns if now.success else self.max_turns
        total = now.cost + cost
        now = now._replace(success=now.success and total < FOUND_BELOW)
        self._moment = now._replace(steps=steps, cost=total, done=done)
        return self._step(self._moment.result if done else self.observation(), cost, chosen, valid)

    def _step(self, observation: str, cost: float, chosen: Action | None, valid: bool) -> Step:
        now = self._moment
        info = {
            "raw_score": -now.cost,
            "valid": valid,
            "disaster": False,
            "cost": cost,
            "command": chosen.text if chosen else None,
            "identified": now.identified,
            "success": now.success,
        }
        return Step(observation, 1.0 if now.success and now.done else 0.0, now.done, info)

    def snapshot(self) -> ExploreSnapshot:
        """Hashable; a few strings and numbers."""
        return self._moment

    def restore(self, snapshot: ExploreSnapshot) -> None:
        """See ``AgentEnv``; the tasks, repositories and settings must be the same."""
        if (snapshot.task, snapshot.episode) != (self._moment.task, self._moment.episode):
            task = self._tasks[snapshot.task]
            draw = (self._seed, snapshot.task, snapshot.episode)
            self._all_targets = self._existing_targets(task)
            self._easy_target = rng("autoexplore easy", *draw).choice(self._all_targets)
            leaveout = Leaveout.around(self.targets(), self._leaveout_prob, *draw)
            self._sandbox = Sandbox(View(self._repos[task.root].tree, leaveout))
        self._moment = snapshot

    def _existing_targets(self, task: Task) -> tuple[str, ...]:
        repo = self._repos[task.root]
        return tuple(
            target for target in task.targets(self._union_targets) if reachable(repo, target, len(self._labels))
        )

    def targets(self) -> tuple[str, ...]:
        """The correct files of this episode."""
        return (self._easy_target,) if self._easy else self._all_targets

    def question(self) -> str:
        """The question of this episode."""
        return f"Find {self._easy_target}" if self._easy else self._tasks[self._moment.task].question

    def choices(self) -> list[Choice]:
        """The current choices, in listing order; [] when done."""
        now = self._moment
        if now.done:
            return []
        key = (self._seed, now.task, now.episode, now.steps) if self._shuffle_action else None
        return label(self._every_action()[: len(self._labels)], key, self._labels)

    def _every_action(self) -> list[Action]:
        """All current actions, even if there are more than labels; cached, so a folder is listed once per step."""
        now = self._moment
        if self._listed[0] is not now:
            self._listed = (now, [] if now.done else every_action(self._sandbox.view, now.cwd, now.seen))
        return self._listed[1]

    def unlisted(self) -> int:
        """Number of actions in this folder without a label, because there are too many; 0 when done."""
        return max(0, len(self._every_action()) - len(self._labels))

    def valid_actions(self) -> list[str]:
        """The listed commands, sorted."""
        return sorted(choice.action.text for choice in self.choices())

    def observation(self) -> str:
        """The state in the policy's format."""
        now = self._moment
        names = [name for name in self._sandbox.view.entries(now.cwd) if can_be_listed(name)]
        return STATE.format(
            task=self.question(),
            cwd=now.cwd and now.cwd + "/",
            files="\n".join(map(quoted, names)),
            history="\n".join(now.history),
            result=now.result,
            actions="\n".join(f"{choice.label}. {choice.action.text}" for choice in self.choices()),
        )

    def expert(self) -> list[Move]:
        """The known path from here to the nearest target: ``cd``, ``cat`` (unless already read or too late), ``id``.

        Each action has a reason that a searcher could give, with wording that varies with the task. [] when done or
        when too few steps remain.
        """
        now = self._moment
        if now.done:
            return []
        actions = plan(now.cwd, self.targets(), now.seen, self.max_turns - now.steps)
        question, draw = self.question(), (self._seed, now.task, now.steps)
        return [Move(explain(question, action, (*draw, i)), action.text) for i, action in enumerate(actions)]
