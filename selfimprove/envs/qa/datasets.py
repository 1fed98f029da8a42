"""The question data sets by name: how each is read, and how answers to its questions are scored."""

from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

from selfimprove.core.errors import UserError
from selfimprove.envs.qa import bamboogle, hotpotqa, mmlu, strategyqa
from selfimprove.envs.qa.base import Question, Score

LOADERS: Mapping[str, Callable[[str, Path], list[Question]]] = {
    "hotpotqa": hotpotqa.load,
    "strategyqa": strategyqa.load,
    "bamboogle": bamboogle.load,
    "mmlu": mmlu.load,
}
GRADES: Mapping[str, Callable[[str, str], Score]] = {"strategyqa": strategyqa.grade, "mmlu": mmlu.grade}
"""Task-specific metrics; all other tasks are scored like HotpotQA."""


def score(answer: str, question: Question) -> Score:
    """The score of ``answer`` by the metric of the question's task; an empty answer is never rewarded."""
    return GRADES.get(question.task, hotpotqa.grade)(answer, question.gold)


def load_questions(name: str, split: str, folder: Path) -> list[Question]:
    """The split's questions in the data set's order, so that the list index is the task index.

    ``folder`` contains the data set's files (``core.sources``); the encyclopedia's questions are generated, not read.

    Raises:
        UserError: no such task or split, a missing or malformed file, or a split without answers.
    """
    if name not in LOADERS:
        raise UserError(f"spin.tasks: there is no task {name!r} to read; choose one of {', '.join(LOADERS)}.")
    return own_ids(LOADERS[name](split, folder))


def own_ids(questions: list[Question]) -> list[Question]:
    """Append ``-2``, ``-3``, … to the ids of repeated questions, in file order."""
    seen: Counter[str] = Counter()
    taken = {question.id for question in questions}
    own = []
    for question in questions:
        seen[question.id] += 1
        if seen[question.id] == 1:
            own.append(question)
            continue
        while (name := f"{question.id}-{seen[question.id]}") in taken:
            seen[question.id] += 1
        taken.add(name)
        own.append(question.model_copy(update={"id": name}))
    return own
