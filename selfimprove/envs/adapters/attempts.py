"""Adapter for Agent-R: problems with one right answer, acted in by text. An action is an attempt at the whole problem.

An episode (a word problem; the first attempt is wrong)::

    Mia has 7 boxes with 12 marbles in each. She loses 15 of them. How many marbles does she have?
    Thought: I work the problem out.
    Action: 7 * 12 = 84 marbles. 84 + 15 = 99 marbles. The answer is \\boxed{99}.
    The answer is incorrect. Please try again. Here's the question: Mia has 7 boxes …
    Thought: That was wrong, so I work it out again.
    Action: 7 * 12 = 84 marbles. 84 - 15 = 69 marbles. The answer is \\boxed{69}.
    Great job! You've successfully answered the question.

The observation is RISE's feedback. The episode ends with the right answer or the last attempt. An action is one line,
so the lines of a demonstration are joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

from pydantic import Field, SerializeAsAny, model_validator

from selfimprove.core.errors import UserError
from selfimprove.core.params import LARGEST_SEED
from selfimprove.envs.feedback import FAILURE, SUCCESS
from selfimprove.envs.interface import AgentEnv, AnswerEnv, MakesProblems, Move, Problem, Step
from selfimprove.envs.params import AnswerParams, EnvParams, Judged, TextParams

INSTRUCTION = """\
You are asked a problem. An action is your whole solution of it, on one line, ending with the answer; a wrong one may be
tried again. Answer each time with a thought and one action:
Thought: why
Action: the solution"""

FIRST, AGAIN = "I work the problem out.", "That was wrong, so I work it out again."


class AttemptsParams(TextParams):
    """Problems with one right answer, with their environment's own keys. An action is an attempt."""

    inner: SerializeAsAny[AnswerParams] = Field(description="filled in from the environment's own keys")
    problems: str | None = Field(
        default=None,
        description="JSONL of problems in the environment's format; null: generated problems, as for gsm8k",
    )
    count: int = Field(default=2000, ge=1, le=1_000_000, description="number of generated problems")
    seed: int = Field(default=17, ge=0, le=LARGEST_SEED, description="seed of the generated problems")
    attempts: int = Field(default=5, ge=1, le=1000, description="maximum number of attempts at a problem")

    judged: ClassVar[Judged] = Judged("a problem, which is to be solved, in several attempts if need be", "problem")
    lists_actions: ClassVar[bool] = False
    adapts: ClassVar[tuple[type[EnvParams], ...]] = (AnswerParams,)
    how: ClassVar[str] = "an action is an attempt"

    @model_validator(mode="after")
    def _has_problems(self) -> AttemptsParams:
        if self.problems is None and not isinstance(self.inner.make(), MakesProblems):
            raise ValueError(
                f'problems: {self.name} needs a JSONL file of problems; name one (make play: ARGS="--file <problems>")'
            )
        return self

    def instruction(self) -> str:
        return INSTRUCTION

    def make(self) -> AgentEnv:
        """See ``TextParams``. Raises: UserError: the file is missing or malformed, or no problem can be generated."""
        env = self.inner.make()
        return Attempts(env, self._problems(env), self.attempts)

    def _problems(self, env: AnswerEnv) -> list[Problem]:
        if self.problems is not None:
            from selfimprove.core.records import read_rows

            where = Path(self.problems)
            return env.load(read_rows(where), where)
        assert isinstance(env, MakesProblems)
        return env.problems({"train": self.count}, seed=self.seed)["train"]


class Tried(NamedTuple):
    """A snapshot: the problem, the number of attempts made, and the reward of the last one."""

    task: int
    attempts: int = 0
    reward: float = 0.0


class Attempts:
    """Implements ``AgentEnv`` over graded problems. An attempt's reward is its grade, at least 0."""

    instruction = INSTRUCTION

    def __init__(self, env: AnswerEnv, problems: Sequence[Problem], attempts: int) -> None:
        self.name, self._env, self._problems, self._most = env.name, env, problems, attempts
        self._now = Tried(0)

    def task_ids(self) -> Sequence[int]:
        """Indices into the list of problems."""
        return range(len(self._problems))

    @property
    def _problem(self) -> Problem:
        return self._problems[self._now.task]

    @property
    def _over(self) -> bool:
        return self._now.reward == 1 or self._now.attempts >= self._most

    def reset(self, task_id: int) -> str:
        """Returns the question. Raises: UserError: no such task."""
        if task_id not in self.task_ids():
            raise UserError(
                f"{self.name} has no problem {task_id}; choose a number from 0 to {len(self._problems) - 1}."
            )
        self._now = Tried(task_id)
        return self._problem.question

    def step(self, action: str) -> Step:
        """See ``AgentEnv``; an attempt without a recognisable answer is invalid but counts."""
        valid = False
        if not self._over:
            grade = self._env.grade(action, self._problem)
            valid = grade.answer is not None
            self._now = Tried(self._now.task, self._now.attempts + 1, min(1.0, max(0.0, grade.reward)))
        reward = self._now.reward
        said = SUCCESS if reward == 1 else FAILURE.format_map({"question": self._problem.question})
        return Step(said, reward, self._over, {"raw_score": reward, "valid": valid, "disaster": False})

    def snapshot(self) -> Tried:
        """Hashable; numbers only."""
        return self._now

    def restore(self, snapshot: Tried) -> None:
        self._now = snapshot

    def valid_actions(self) -> None:
        """See ``AgentEnv``: attempts cannot be listed."""
        return

    def expert(self) -> list[Move]:
        """See ``AgentEnv``: the demonstration."""
        if self._over:
            return []
        solution = " ".join(self._env.demonstration(self._problem).split())
        return [Move(AGAIN if self._now.attempts else FIRST, solution)]
