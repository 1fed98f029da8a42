"""StrategyQA: yes-or-no questions with implicit reasoning steps (Geva et al. 2021, MIT).

A question in the form of prompts (the prefix is the method's ``question_prefix``)::

    question  Yes or no: Will the Albany in Georgia reach a hundred thousand occupants before the one in New York?
    gold      no
    "No, it will not."  ->  reward 1        "Not sure"  ->  reward 0

The first word, without punctuation, is the answer (docs/spin.md, S27). The original compares prefixes, so that
"not sure" counts as "no".
"""

import re
from pathlib import Path

from selfimprove.core.errors import UserError
from selfimprove.core.records import read_records, text_field
from selfimprove.envs.qa.base import Question, Score, content_id, pick_split

FILES = {"train": "strategyqa_train_filtered.json", "dev": "strategyqa_dev.json"}
_WORD = re.compile(r"[^\W_]+(?:['’/_-][^\W_]+)*")


def load(split: str, folder: Path) -> list[Question]:
    """The questions of a split, in file order; gold answers are ``yes`` and ``no``.

    Raises:
        UserError: no such split (the test split has no answers), or its file is missing or malformed.
    """
    path = pick_split("strategyqa", split, FILES, folder)
    questions = []
    for place, row in read_records(path):
        question, answer = text_field(row, "question", place), row.get("answer")
        if not isinstance(answer, bool):
            raise UserError(f"{place}: field 'answer' must be true or false; fix or delete it.")
        given = row.get("qid")
        questions.append(
            Question(
                id=f"strategyqa-{given}" if isinstance(given, str) else content_id("strategyqa", question),
                task="strategyqa",
                question=question,
                gold="yes" if answer else "no",
            )
        )
    return questions


def first_word(answer: str) -> str:
    """The first word, lower-cased, without surrounding punctuation; "" if there is none.

    Inner hyphens, apostrophes, slashes and underscores belong to it: "no-one", "yes/no" and "no_answer" are not "no".
    """
    found = _WORD.search(answer.lower())
    return found[0] if found else ""


def grade(answer: str, gold: str) -> Score:
    """Right if the first word is the gold yes or no; F1 is 1 if right, else 0."""
    pred = first_word(answer)
    right = pred == gold
    return Score(float(right), right, float(right), pred, gold)
