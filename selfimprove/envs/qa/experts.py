"""Expert trajectories, which SPIN imitates, and the scripted experts of questions that specify their look-ups.

A trajectory in the encyclopedia, in the form of a policy's text (docs/spin.md, S30)::

    Thought: I need the author of The Silver Gate.
    Action: search[The Silver Gate]
    Observation: The Silver Gate is a novel by Mara Venn. It appeared in 1745.
    Thought: Mara Venn wrote it. Now I need the birthplace of Mara Venn.
    Action: search[Mara Venn]
    Observation: Mara Venn was a painter from Tolma. She was born in 1712.
    Thought: Mara Venn was born in Tolma.
    Action: finish[Tolma]

The terminal line ``Observation: Episode finished, …`` is not part of a trajectory: it always contains True for experts,
so a model could win by that word alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from pydantic import Field

from selfimprove.core.errors import UserError
from selfimprove.core.records import Record
from selfimprove.core.seeds import rng
from selfimprove.envs.qa.base import Paragraph, Question, Split
from selfimprove.envs.qa.datasets import score

if TYPE_CHECKING:
    from selfimprove.envs.qa.tools.search import Tool

Source = Literal["scripted", "gpt-4", "data"]


class Round(Record):
    """One round: the policy's text, and the observation. The last round, ``finish[...]``, has no observation."""

    thought: str
    action: str
    observation: str | None = None
    verbatim: bool = Field(
        default=False, description="keep the line breaks of the observation, for text from an environment"
    )


class Expert(Record):
    """One expert trajectory, which ends with ``finish[<answer>]``. ``source``: its author."""

    id: str
    question: Question
    rounds: list[Round]
    source: Source

    @property
    def answer(self) -> str:
        """The argument of the last round's ``finish``."""
        return self.rounds[-1].action.partition("[")[2].removesuffix("]")


@dataclass(frozen=True)
class Lookup:
    """One search in a plan: the reason, the query, and the title of the paragraph that it should find."""

    thought: str
    query: str
    title: str


@dataclass(frozen=True)
class Quest:
    """A question with its scripted expert's plan."""

    question: Question
    lookups: tuple[Lookup, ...]
    conclusion: str


class QuestSource(Protocol):
    """User-defined questions with their experts' plans, and the corpus in which the answers are found."""

    def quests(self, split: Split, count: int) -> Sequence[Quest]:
        """``count`` questions of a split, the same in every call; no question occurs in two splits."""

    def paragraphs(self) -> Sequence[Paragraph]:
        """The corpus that the tool ``local`` searches."""


def demonstrate(quest: Quest, search: Tool) -> Expert:
    """The scripted expert's trajectory, with observations from ``search``.

    Raises:
        UserError: a search finds nothing, or the gold answer earns no reward.
    """
    question = quest.question
    rounds = []
    for lookup in quest.lookups:
        found = search(lookup.query)
        if found is None:
            raise UserError(f"question {question.id}: the search returns nothing for {lookup.query!r}; fix the corpus.")
        rounds.append(Round(thought=lookup.thought, action=f"search[{lookup.query}]", observation=found))
    rounds.append(Round(thought=quest.conclusion, action=f"finish[{question.gold}]"))
    expert = Expert(id=f"expert-{question.id}", question=question, rounds=rounds, source="scripted")
    if score(expert.answer, question).reward != 1:
        raise UserError(f"question {question.id}: the gold answer {question.gold!r} earns no reward; fix the question.")
    return expert


# --- HotpotQA --------------------------------------------------------------------------------------------------------

_FIRST = ("I need to look up {title}.", "First I search for {title}.", "I start with {title}.")
_NEXT = ("Next I need {title}.", "Now I look up {title}.", "I also need to know about {title}.")
_LAST = ("So the answer is {gold}.", "The answer is {gold}.", "This tells me that the answer is {gold}.")


def hotpotqa_quest(question: Question) -> Quest:
    """The plan for a question with known gold paragraphs: search each title, finish with the answer.

    The paragraph with the answer comes last only if the data set lists it last; the wording of the thoughts is drawn by
    the question's id.

    Raises:
        UserError: the question has no gold paragraph.
    """
    if not question.titles:
        raise UserError(f"question {question.id} has no supporting_facts, which a scripted expert needs; add them.")
    draw = rng("hotpotqa expert", question.id)
    lookups = []
    for number, title in enumerate(question.titles):
        thought = draw.choice(_NEXT if number else _FIRST).format(title=title)
        lookups.append(Lookup(thought, title, title))
    return Quest(question, tuple(lookups), draw.choice(_LAST).format(gold=question.gold))
