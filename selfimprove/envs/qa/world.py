"""The ``env`` sections of look-up questions: environments whose actions are searches and answers.

SPIN has its own sources of the same questions (``spin.tasks``), in the form of its paper.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from selfimprove.core.params import LARGEST_SEED
from selfimprove.envs.interface import AgentEnv
from selfimprove.envs.own_classes import own_class
from selfimprove.envs.params import Judged, OwnParams, TextParams
from selfimprove.envs.qa.datasets import load_questions, score
from selfimprove.envs.qa.encyclopedia import EncyclopediaParams
from selfimprove.envs.qa.experts import QuestSource

if TYPE_CHECKING:
    from selfimprove.envs.qa.encyclopedia import Encyclopedia
    from selfimprove.envs.qa.tools.bm25 import LocalSearch

__all__ = ["EncyclopediaWorldParams", "HotpotQAParams", "OwnQuestionParams", "load_questions", "score"]
"""The sections, and older names that stay importable from here (docs/reference.md)."""

_JUDGED = Judged("a collection of paragraphs, in which the answer to a question is to be found", "search")


class QuestionParams(TextParams):
    """Questions whose answers must be looked up."""

    paper: ClassVar[str] = "spin"
    judged: ClassVar[Judged] = _JUDGED

    def instruction(self) -> str:
        from selfimprove.envs.qa.env import INSTRUCTION

        return INSTRUCTION


class EncyclopediaWorldParams(QuestionParams, EncyclopediaParams):
    """The embedded encyclopedia: a fictional world to search, and questions that need up to three paragraphs."""

    name: Literal["encyclopedia"] = "encyclopedia"
    questions: int = Field(
        default=2000,
        ge=1,
        le=1_000_000,
        description="number of training questions; dev has a quarter of this number and test five twelfths, about "
        "separate people and works",
    )
    seed: int = Field(default=17, ge=0, le=LARGEST_SEED, description="seed of the encyclopedia and its questions")

    def make(self) -> AgentEnv:
        """See ``TextParams``. Raises: UserError: the world is too small for this number of questions."""
        from selfimprove.envs.qa.env import Questions
        from selfimprove.envs.splits import HeldOut

        size = EncyclopediaParams(**{key: getattr(self, key) for key in EncyclopediaParams.model_fields})
        book, search = _encyclopedia(size.model_dump_json(), self.questions, self.seed)
        quests = [quest for part in book.splits.values() for quest in part]
        parts, start = {}, 0
        for part, its in book.splits.items():
            parts[part] = range(start, start := start + len(its))
        return Questions(self.name, quests, search, book.names, HeldOut(parts, "raise env.questions"))


class HotpotQAParams(QuestionParams):
    """HotpotQA: real questions that need two paragraphs; the corpus contains those of all questions in the file."""

    name: Literal["hotpotqa"] = "hotpotqa"
    file: str = Field(description="questions with contexts, in HotpotQA's own format (JSON or JSON Lines)")

    lists_actions: ClassVar[bool] = False

    def make(self) -> AgentEnv:
        """See ``TextParams``. Raises: UserError: the file is missing or malformed, or a question has no context."""
        from selfimprove.core.records import read_records
        from selfimprove.envs.qa.env import Questions
        from selfimprove.envs.qa.experts import hotpotqa_quest
        from selfimprove.envs.qa.hotpotqa import context_paragraphs, read_question
        from selfimprove.envs.qa.tools.bm25 import LocalSearch

        rows = list(read_records(Path(self.file)))
        quests = [hotpotqa_quest(read_question(row, place)) for place, row in rows]
        return Questions(self.name, quests, LocalSearch(context_paragraphs(rows)))


class OwnQuestionParams(OwnParams, QuestionParams):
    """User-defined questions whose answers must be looked up (docs/environments.md)."""

    questions: int = Field(default=1000, ge=1, le=1_000_000, description="number of training questions")

    needs: ClassVar[type] = QuestSource

    @property
    def world_name(self) -> str:
        """The class's name in lower case."""
        return str(own_class(self.name, self.needs).__name__.lower())

    def make(self) -> AgentEnv:
        """See ``TextParams``. Raises: UserError: the class rejects the options, or has too few questions."""
        from selfimprove.envs.qa.env import Questions
        from selfimprove.envs.qa.tools.bm25 import LocalSearch

        source: QuestSource = self._made()
        quests = source.quests("train", self.questions)
        names = {quest.question.gold for quest in quests}
        return Questions(self.world_name, quests, LocalSearch(source.paragraphs()), names)


@lru_cache(maxsize=2)
def _encyclopedia(size: str, questions: int, seed: int) -> tuple[Encyclopedia, LocalSearch]:
    """Created once, shared by all copies. A split's number of questions is proportional to its number of entries."""
    from selfimprove.envs.qa.encyclopedia import make_encyclopedia
    from selfimprove.envs.qa.encyclopedia_world import SHARES
    from selfimprove.envs.qa.tools.bm25 import LocalSearch

    counts = {split: max(1, round(questions * share / SHARES["train"])) for split, share in SHARES.items()}
    book = make_encyclopedia(EncyclopediaParams.model_validate_json(size), counts, seed=seed)
    return book, LocalSearch(book.paragraphs)
