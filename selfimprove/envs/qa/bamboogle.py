"""Bamboogle: 125 two-hop questions that search engines do not answer directly (Press et al. 2023, MIT).

A question::

    question  What rocket was the first spacecraft that ever approached Uranus launched on?
    gold      Titan IIIE

Scored like HotpotQA; there is only a test split.
"""

from pathlib import Path

from selfimprove.core.errors import UserError
from selfimprove.envs.qa.base import Question, content_id, pick_split, read_table

FILES = {"test": "bamboogle_test.csv"}
COLUMNS = ("Question", "Answer")


def load(split: str, folder: Path) -> list[Question]:
    """The questions in the CSV file (columns Question, Answer), in file order.

    Raises:
        UserError: no such split, or the file is missing or malformed.
    """
    path = pick_split("bamboogle", split, FILES, folder)
    questions = []
    for place, cells in read_table(path, header=COLUMNS):
        if len(cells) != 2 or not all(cell.strip() for cell in cells):
            raise UserError(f"{place}: expected a question and an answer; fix or delete the line.")
        question, answer = cells
        questions.append(
            Question(id=content_id("bamboogle", question), task="bamboogle", question=question, gold=answer)
        )
    return questions
