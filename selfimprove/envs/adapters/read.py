"""Adapter for RISE: look-up questions as problems with one right answer. The question contains the paragraphs."""

from typing import ClassVar

from pydantic import Field, SerializeAsAny

from selfimprove.envs.interface import AnswerEnv
from selfimprove.envs.params import EnvParams, OwnTasksParams
from selfimprove.envs.qa.world import QuestionParams


class ReadParams(OwnTasksParams):
    """Look-up questions, with their environment's own keys. An attempt is an answer, given question and paragraphs."""

    inner: SerializeAsAny[QuestionParams] = Field(description="filled in from the environment's own keys")
    others: int = Field(
        default=2,
        ge=0,
        le=100,
        description="number of other questions whose paragraphs are added to each question as distractors",
    )

    adapts: ClassVar[tuple[type[EnvParams], ...]] = (QuestionParams,)
    how: ClassVar[str] = "the paragraphs stand in the question"

    def make(self) -> AnswerEnv:
        """See ``AnswerParams``."""
        from selfimprove.envs.reading import Reading

        return Reading(self.inner.acted(), self.inner.world, self.others)
