"""Adapter for Reflect-RL: text environments with labels. The admissible actions of each state are listed."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field, SerializeAsAny, model_validator

from selfimprove.envs.interface import EnumeratedEnv
from selfimprove.envs.labels import LABELS
from selfimprove.envs.params import EnvParams, ListedParams, TextParams


class LabelledParams(ListedParams):
    """An environment acted in by text, with its own keys. Its listed actions get labels."""

    inner: SerializeAsAny[TextParams] = Field(description="filled in from the environment's own keys")

    adapts: ClassVar[tuple[type[EnvParams], ...]] = (TextParams,)
    how: ClassVar[str] = "listed actions get labels"

    @classmethod
    def lacks(cls, one: type[EnvParams]) -> str:
        return "" if issubclass(one, TextParams) and one.lists_actions else cls.capability

    @model_validator(mode="after")
    def _embedded(self) -> LabelledParams:
        if self.inner.server is not None:
            raise ValueError("server: only the embedded environment lists actions; set null")
        for one in self.inner.mixed():
            if not one.lists_actions:
                raise ValueError(f"name: {one.world_name} has no {self.capability}, which this method needs; remove it")
        return self

    def make(self, tasks: Path | None = None, *, training: bool = False) -> EnumeratedEnv:
        from selfimprove.envs.listed import ListedText, refuse_level

        refuse_level(self.world_name, self.curriculum_index)
        return ListedText(
            self.inner.make(), self.max_turns, LABELS[self.labels], self.shuffle_action, self.seed,
            add_expert=not self.inner.lists_expert,
        )  # fmt: skip

    def instruction(self) -> str:
        return f"{self.inner.instruction()}\n"
