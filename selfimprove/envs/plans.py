"""Adapter from ``AgentEnv`` to ``AnswerEnv``, for RISE: a task is a problem, and an attempt at it is a complete plan.

A plan has one action per line and is executed from a fresh reset; its reward is the episode's. The feedback reports
what happened, for the next attempt. A plan for TextCraft's goal 867 that omits gathering, and its feedback::

    craft 3 marble brick using 2 marble rock
    craft 1 marble step using 2 marble brick

    > craft 3 marble brick using 2 marble rock
    Could not find enough items to craft minecraft:marble_brick
    > craft 1 marble step using 2 marble brick
    Could not find enough items to craft minecraft:marble_step
    The answer is incorrect. Please try again.

The method adds the last line. The feedback contains the environment's responses, but neither the reward nor the final
observation of an episode, because these would reveal success: without an oracle, RISE calls right plans incorrect, too.
"""

import re
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any

from selfimprove.core.errors import UserError
from selfimprove.core.seeds import rng
from selfimprove.envs.interface import AgentEnv, EmbeddedWorld, Grade, Problem, World
from selfimprove.envs.splits import draw_splits

RULE = (
    "Here, write down all actions at once: one action a line and nothing else, in the order in which they are carried "
    "out. Every attempt starts from the beginning."
)
NOTHING = "There was no action to carry out."

_MARK = re.compile(r"(?:(?:\d+[.)]|[-*>])\s+)?(?:Action:\s*)?")


def actions_of(attempt: str, most: int) -> list[str]:
    """The plan in an attempt: its first ``most`` non-empty lines, without numbers, bullets or ``Action:``.

    Lines that begin with ``Thought:`` are skipped.
    """
    lines = (line.strip() for line in attempt.splitlines())
    actions = (_MARK.sub("", line, count=1).strip() for line in lines if not line.startswith("Thought:"))
    return [action for action in actions if action][:most]


class Plans:
    """Implements ``AnswerEnv``, ``CarriesOut``, ``MakesProblems`` and ``WritesRows`` over an environment of actions."""

    def __init__(
        self, env: AgentEnv, world: Callable[[], World] | None = None, max_actions: int = 30, told: int = 1500
    ) -> None:
        """Nothing is started before it is needed.

        Args:
            env: a copy for the expert and for ``grade``.
            world: creates the world in which ``carry_out`` plays; None: ``env``.
            max_actions: the maximum number of actions in a plan.
            told: the maximum length of the feedback in characters, divided equally among the actions.
        """
        self.name = env.name
        self._env, self._embedded = env, EmbeddedWorld(env)
        self._make_world: Callable[[], World] = world or (lambda: self._embedded)
        self._world: World | None = None
        self._max_actions, self._told = max_actions, told

    def load(self, rows: Iterable[tuple[int, Mapping[str, Any]]], where: Path) -> list[Problem]:
        """Problems from rows {task, question?, answer?}; the environment supplies both texts unless a row has both."""
        problems, ids, lines = [], set(self._env.task_ids()), dict[int, int]()
        for line, row in rows:
            task, question, answer = row.get("task"), row.get("question"), row.get("answer")
            if not isinstance(task, int) or isinstance(task, bool) or task not in ids:
                raise UserError(f"{where}, line {line}: 'task' must be a task of {self.name}; fix or delete the line.")
            if lines.setdefault(task, line) != line:
                raise UserError(f"{where}, line {line}: task {task} is in line {lines[task]} too; delete one of them.")
            if isinstance(question, str) and isinstance(answer, str):
                problems.append(Problem(self._id(task), question, answer, self.extract(answer) or ""))
            else:
                problems.append(self._problem(task))
        return problems

    def row(self, problem: Problem) -> Mapping[str, Any]:
        """See ``WritesRows``."""
        return {"task": self._task(problem), "question": problem.question, "answer": problem.answer}

    def problems(
        self, counts: Mapping[str, int], *, seed: int, difficulty: Mapping[str, Any] | None = None
    ) -> dict[str, list[Problem]]:
        """See ``MakesProblems``: tasks drawn by the seed. The difficulty cannot be chosen.

        Raises:
            UserError: too few tasks, or the expert's plan for a demonstration, as it is read, does not earn reward 1.
        """
        drawn = draw_splits(self.name, self._env.task_ids(), counts, seed=seed)
        made = {split: [self._problem(task) for task in drawn[split]] for split in counts}
        for problem in made.get("demonstrations", []):
            reward = self.grade(problem.answer, problem).reward
            if reward != 1:
                self._env.reset(self._task(problem))
                for move in self._env.expert():
                    if (read := actions_of(move.action, 2)) != [move.action]:
                        raise UserError(
                            f"{problem.id}: the expert's action {move.action[:80]!r} is read as {read!r} in a plan, "
                            "which has one action per line; give it another name."
                        )
                raise UserError(
                    f"{problem.id}: the expert's plan ends with reward {reward:g} instead of 1 within "
                    f"{self._max_actions} actions; raise env.max_actions, or request fewer demonstrations."
                )
        return made

    def extract(self, attempt: str) -> str | None:
        """The plan, one action per line."""
        return "\n".join(self._plan(attempt)) or None

    def equivalent(self, a: str | None, b: str | None) -> bool:
        """Whether the actions are the same."""
        return a is not None and a == b

    def grade(self, attempt: str, problem: Problem) -> Grade:
        """The reward of the plan in the embedded environment; 0 if it has no action."""
        return _at_once(self._carry_out(self._embedded, attempt, problem))[0]

    async def carry_out(self, attempt: str, problem: Problem) -> tuple[Grade, str]:
        """See ``CarriesOut``."""
        if self._world is None:
            self._world = self._make_world()
        return await self._carry_out(self._world, attempt, problem)

    async def close(self) -> None:
        """Release the world, if one was created."""
        world, self._world = self._world, None
        if world is not None:
            await world.close()

    def demonstration(self, problem: Problem) -> str:
        """The expert's actions, one per line."""
        return problem.answer

    def slip(self, problem: Problem, *key: object) -> str:
        """The expert's plan without one necessary action; if there is no such plan, without its last character."""
        plan = problem.answer.split("\n")
        for left_out in rng("slip", problem.id, *key).sample(range(len(plan)), len(plan)):
            wrong = "\n".join(plan[:left_out] + plan[left_out + 1 :])
            if wrong and self.grade(wrong, problem).reward < 1:
                return wrong
        return "\n".join([*plan[:-1], plan[-1][:-1]])

    def _plan(self, attempt: str) -> list[str]:
        return actions_of(attempt, self._max_actions)

    def _problem(self, task: int) -> Problem:
        observation = self._env.reset(task)
        plan = "\n".join(move.action for move in self._env.expert())
        question = f"{self._env.instruction.strip()}\n\n{RULE}\n\n{observation}"
        return Problem(self._id(task), question, plan, plan)

    def _id(self, task: int) -> str:
        return f"{self.name}-{task}"

    def _task(self, problem: Problem) -> int:
        return int(problem.id.removeprefix(f"{self.name}-"))

    async def _carry_out(self, world: World, attempt: str, problem: Problem) -> tuple[Grade, str]:
        plan = self._plan(attempt)
        if not plan:
            return Grade(0.0, None), NOTHING
        state, _ = await world.reset(self._task(problem))
        reward, said = 0.0, []
        for done, action in enumerate(plan, start=1):
            state, step = await world.step(state, action)
            reward = step.reward
            share, left = self._told // len(plan), len(plan) - done
            if step.done:  # omit its observation, which may reveal the reward
                said.append(
                    _cut(f"> {action}", share) + f"\nThe episode ended{f', {left} actions early' if left else ''}."
                )
                break
            said.append(_cut(f"> {action}\n{step.observation.strip()}", share))
        return Grade(reward, self.extract(attempt)), "\n".join(said)


def _cut(text: str, longest: int) -> str:
    """The text, or its beginning and end if it is longer than ``longest``."""
    half = (longest - 1) // 2
    return text if len(text) <= longest else f"{text[:half]}…{text[-half:]}"


def _at_once(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that never waits, as in an embedded world."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    work.close()
    raise RuntimeError("an embedded world waited")
