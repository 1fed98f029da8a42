"""A base class for user-defined questions that one paragraph answers (SPIN; docs/environments.md)."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from selfimprove.core.errors import UserError
from selfimprove.envs.qa.base import Paragraph, Question, Split, content_id
from selfimprove.envs.qa.experts import Lookup, Quest

SHARES: dict[Split, range] = {"train": range(8), "dev": range(8, 9), "test": range(9, 10)}
"""Each split's positions within every ten consecutive facts."""


class Fact(NamedTuple):
    """A paragraph, and a question that it answers."""

    title: str
    text: str
    question: str
    answer: str


class Facts(ABC):
    """Implements ``QuestSource``: the expert looks up the paragraph's title and answers.

    For questions that need several paragraphs, override ``quests`` and return ``Quest``s with several look-ups.
    """

    @abstractmethod
    def facts(self) -> Sequence[Fact]:
        """All facts, the same ones in the same order in every call."""

    def paragraphs(self) -> Sequence[Paragraph]:
        """See ``QuestSource``.

        Raises:
            UserError: two facts have one title but different texts, of which a search for the title finds only one.
        """
        facts, texts = self.facts(), dict[str, str]()
        for fact in facts:
            if texts.setdefault(fact.title, fact.text) != fact.text:
                raise UserError(
                    f"{type(self).__name__}: two facts have the title {fact.title!r} but different texts, of which a "
                    "search finds only one; give each text a title of its own."
                )
        return [Paragraph(title=fact.title, text=fact.text) for fact in facts]

    def quests(self, split: Split, count: int) -> Sequence[Quest]:
        """See ``QuestSource``: of every ten facts, eight are for train, one for dev, one for test.

        Raises:
            UserError: there are too few questions.
        """
        facts = [fact for i, fact in enumerate(self.facts()) if i % 10 in SHARES[split]]
        if len(facts) < count:
            raise UserError(
                f"spin.tasks.{split}, or env.questions of another method: {count} questions are requested, but "
                f"{type(self).__name__} has {len(facts)} for this split (of ten facts, eight are for train, one for "
                "dev and one for test); request fewer or add facts."
            )
        return [self._quest(fact) for fact in facts[:count]]

    def _quest(self, fact: Fact) -> Quest:
        task = type(self).__name__.lower()
        question = Question(
            id=content_id(task, fact.question), task=task, question=fact.question, gold=fact.answer, titles=[fact.title]
        )
        lookups = (Lookup(f"I need to look up {fact.title}.", fact.title, fact.title),)
        return Quest(question, lookups, f"So the answer is {fact.answer}.")
