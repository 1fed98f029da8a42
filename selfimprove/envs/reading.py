"""Adapter from look-up questions to ``AnswerEnv``, for RISE: the paragraphs are part of the question.

A problem of the embedded encyclopedia, and its demonstration (the expert's thoughts)::

    Read the paragraphs and answer the question. Think first; end with finish[answer], in as few words as there are.

    Mara Venn was a painter from Tolma. She was born in 1712.
    Belen lies in Ostmark on the Oder.
    The Silver Gate is a novel by Mara Venn. It appeared in 1745.

    In which town was the author of The Silver Gate born?

    I need the author of The Silver Gate.
    Mara Venn wrote it. Now I need the birthplace of Mara Venn.
    Mara Venn was born in Tolma.
    finish[Tolma]

The paragraphs are those that the expert finds for this question and for a few other questions, shuffled. If questions
are held out for dev or test, the other questions are from the same part, so that training reads nothing that belongs to
a test question. The environment grades the answer. A plan of look-ups (``plans.py``) does not suit questions: its
answer would have to be written before anything was read.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

from selfimprove.core.seeds import rng
from selfimprove.envs.interface import AgentEnv, Problem, World
from selfimprove.envs.plans import Plans
from selfimprove.envs.qa.normalise import exact_match
from selfimprove.envs.splits import beside

RULE = (
    "Read the paragraphs and answer the question. Think first; end with finish[answer], in as few words as there are."
)

_ANSWER = re.compile(r"finish\[", re.IGNORECASE)


class Solved(NamedTuple):
    """An expert's solution: the question, paragraphs in the order of its searches, its thoughts, its answer."""

    question: str
    paragraphs: tuple[str, ...]
    thoughts: tuple[str, ...]
    answer: str


class Reading(Plans):
    """Implements the same protocols as ``Plans``; an attempt is a text that ends with ``finish[answer]``."""

    def __init__(self, env: AgentEnv, world: Callable[[], World] | None = None, others: int = 2) -> None:
        """``others``: the number of other questions whose paragraphs are mixed in."""
        super().__init__(env, world, max_actions=1)
        self._others = others
        self._solved: dict[int, Solved] = {}

    def extract(self, attempt: str) -> str | None:
        """The answer in the last ``finish[...]``: up to the last ``]`` of its line, as an answer may contain ``]``."""
        _, *behind = _ANSWER.split(attempt)
        line = behind[-1].partition("\n")[0] if behind else ""
        return (line.rpartition("]")[0] if "]" in line else line).strip() or None

    def equivalent(self, a: str | None, b: str | None) -> bool:
        """Whether one would be right if the other were, as graded: case, punctuation and articles do not count."""
        return a is not None and b is not None and exact_match(a, b)

    def slip(self, problem: Problem, *key: object) -> str:
        """The expert's thoughts with the answer to another question."""
        thoughts = problem.answer.rpartition("\n")[0]
        tasks = beside(self._env.task_ids(), self._task(problem))
        draw = rng("slip", problem.id, *key)
        for _ in range(20):
            wrong = f"{thoughts}\nfinish[{self._expert(draw.choice(tasks)).answer}]"
            if self.grade(wrong, problem).reward < 1:
                return wrong
        return f"{thoughts}\nfinish[nobody]"

    def _plan(self, attempt: str) -> list[str]:
        answer = self.extract(attempt)
        return [] if answer is None else [f"finish[{answer}]"]

    def _problem(self, task: int) -> Problem:
        solved, tasks = self._expert(task), beside(self._env.task_ids(), task)
        draw = rng("reading", self.name, task)
        others = [self._expert(draw.choice(tasks)) for _ in range(self._others)]
        texts = list(dict.fromkeys(text for one in (solved, *others) for text in one.paragraphs))
        draw.shuffle(texts)
        question = "\n".join([f"{RULE}\n", *texts, f"\n{solved.question}"])
        answer = "\n".join([*solved.thoughts, f"finish[{solved.answer}]"])
        return Problem(self._id(task), question, answer, solved.answer)

    def _expert(self, task: int) -> Solved:
        if task not in self._solved:
            question, paragraphs = self._env.reset(task), []
            way = self._env.expert()
            for move in way[:-1]:
                paragraphs.append(" ".join(self._env.step(move.action).observation.split()))
            thoughts = tuple(move.thought for move in way)
            self._solved[task] = Solved(question, tuple(paragraphs), thoughts, self.extract(way[-1].action) or "")
        return self._solved[task]
