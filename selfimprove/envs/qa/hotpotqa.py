"""HotpotQA: questions that need two Wikipedia paragraphs (Yang et al. 2018, CC BY-SA 4.0).

An episode (the third row of FireAct's experts)::

    question     American politician Joe Heck ran unsuccessfully against Democrat Catherine Cortez Masto, a woman who
                 previously served as the 32nd Attorney General of where?
    Thought:     I need to find out where Catherine Cortez Masto served as the 32nd Attorney General.
    Action:      search[Catherine Cortez Masto 32nd Attorney General of where?]
    Observation: Catherine Marie Cortez Masto (born March 29, 1964) is an American lawyer and politician serving …
    Thought:     Catherine Cortez Masto served as the 32nd attorney general of Nevada.
    Action:      finish[Nevada]
    gold         Nevada

Reward: exact match after normalisation; F1 is also reported (docs/spin.md, S25 and S26). The test split has no answers
and is refused.
"""

import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from selfimprove.core.errors import UserError
from selfimprove.core.records import read_records, text_field
from selfimprove.envs.qa.base import Paragraph, Question, Score, content_id, pick_split
from selfimprove.envs.qa.normalise import exact_match, f1, normalise

FILES = {"train": "train_simplified.json", "dev": "dev_simplified.json"}
SHUFFLE_SEED = 233


def load(split: str, folder: Path) -> list[Question]:
    """The questions of a split in file order; the list index is the task index.

    Raises:
        UserError: no such split, or its file is missing or malformed.
    """
    path = pick_split("hotpotqa", split, FILES, folder)
    return [read_question(row, place) for place, row in read_records(path)]


def read_question(row: Mapping[str, Any], place: str) -> Question:
    """A row of any of the data set's files: {question, answer, type?, id?, gold_titles? or supporting_facts?}.

    Raises:
        UserError: a field is missing or wrong.
    """
    question, answer = text_field(row, "question", place), text_field(row, "answer", place)
    given = row.get("id") or row.get("_id")
    kind = row.get("type")
    return Question(
        id=f"hotpotqa-{given}" if isinstance(given, str) else content_id("hotpotqa", question),
        task="hotpotqa",
        question=question,
        gold=answer,
        titles=gold_titles(row),
        kind=kind if isinstance(kind, str) else "",
    )


def gold_titles(row: Mapping[str, Any]) -> list[str]:
    """The distinct titles of the paragraphs with the supporting facts, in the row's order; [] if the row has none."""
    titles = row.get("gold_titles")
    if isinstance(titles, list):
        return [str(title) for title in titles]
    facts = row.get("supporting_facts")
    if isinstance(facts, list):
        return list(dict.fromkeys(str(fact[0]) for fact in facts if isinstance(fact, (list, tuple)) and fact))
    return []


def context_paragraphs(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> list[Paragraph]:
    """A corpus from the rows' contexts, [[title, [sentence, …]], …]: each title once, in row order.

    ``rows``: (place, row) pairs.

    Raises:
        UserError: a row has no context of that shape.
    """
    paragraphs: dict[str, Paragraph] = {}
    for place, row in rows:
        try:
            for title, sentences in row["context"]:
                text = " ".join("".join(sentences).split())
                paragraphs.setdefault(title, Paragraph(title=title, text=text))
        except (KeyError, TypeError, ValueError):
            raise UserError(f"{place}: 'context' must hold [title, [sentences]] pairs; fix or delete it.") from None
    return list(paragraphs.values())


def task_order(count: int, *, shuffled: bool = True) -> list[int]:
    """Task indices in FireAct's order: shuffled by ``random.Random(233)``, or ascending."""
    order = list(range(count))
    if shuffled:
        random.Random(SHUFFLE_SEED).shuffle(order)
    return order


def grade(answer: str, gold: str) -> Score:
    """Reward = exact match."""
    em = exact_match(answer, gold)
    return Score(float(em), em, f1(answer, gold), normalise(answer), normalise(gold))
