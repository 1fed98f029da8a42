"""Expert trajectories, which SPIN imitates. Scripted ones, whose questions say what to look up, are made here.

One of the encyclopedia, as a policy's text would read (docs/spin.md, S30)::

    Thought: I need the author of The Silver Gate.
    Action: search[The Silver Gate]
    Observation: The Silver Gate is a novel by Mara Venn. It appeared in 1745.
    Thought: Mara Venn wrote it. Now I need the birthplace of Mara Venn.
    Action: search[Mara Venn]
    Observation: Mara Venn was a painter from Tolma. She was born in 1712.
    Thought: Mara Venn was born in Tolma.
    Action: finish[Tolma]

The terminal line ``Observation: Episode finished, …`` is no part of a trajectory: an expert's always says True, so a
model could win on that word alone.
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
    """One round: what the policy wrote, and the observation. The last round, ``finish[...]``, has none."""

    thought: str
    action: str
    observation: str | None = None
    verbatim: bool = Field(
        default=False, description="keep the line breaks of the observation, for text from an environment"
    )


class Expert(Record):
    """One expert trajectory; it ends with ``finish[<answer>]``. ``source`` declares who wrote it."""

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
    """A search of a plan: why, for what, and the paragraph that it is meant to find."""

    thought: str
    query: str
    title: str


@dataclass(frozen=True)
class Quest:
    """A question with the plan of its scripted expert."""

    question: Question
    lookups: tuple[Lookup, ...]
    conclusion: str


class QuestSource(Protocol):
    """Questions of a person's own, with the plans of their experts, and what can be searched for the answers."""

    def quests(self, split: Split, count: int) -> Sequence[Quest]:
        """So many of a split; no question stands in two splits, and each call gives the same ones."""

    def paragraphs(self) -> Sequence[Paragraph]:
        """What the tool ``local`` searches."""


def demonstrate(quest: Quest, search: Tool) -> Expert:
    """The scripted expert's trajectory; its observations are the search's own.

    Raises:
        UserError: a search finds nothing, or the answer is not the gold one.
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
    """The plan for a question that names its gold paragraphs: search each title, finish with the answer.

    The paragraph that holds the answer comes last only where the data set lists it last; the words of the thoughts are
    drawn by the question's id.

    Raises:
        UserError: the question names no paragraph.
    """
    if not question.titles:
        raise UserError(f"question {question.id} has no supporting_facts, which a scripted expert needs; add them.")
    draw = rng("hotpotqa expert", question.id)
    lookups = []
    for number, title in enumerate(question.titles):
        thought = draw.choice(_NEXT if number else _FIRST).format(title=title)
        lookups.append(Lookup(thought, title, title))
    return Quest(question, tuple(lookups), draw.choice(_LAST).format(gold=question.gold))
