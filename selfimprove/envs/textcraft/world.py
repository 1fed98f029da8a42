"""The ``env`` section of TextCraft."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from selfimprove.core.params import LARGEST_SEED
from selfimprove.envs.interface import AgentEnv
from selfimprove.envs.params import AgentGym, Judged, TextParams

if TYPE_CHECKING:
    from selfimprove.envs.textcraft.recipes import RecipeBook


class TextCraftParams(TextParams):
    """TextCraft: gather raw materials and craft items by recipes."""

    name: Literal["textcraft"] = "textcraft"
    recipes: str | None = Field(default=None, description="a recipe file or folder; null: the embedded recipe book")
    seed: int = Field(default=42, ge=0, le=LARGEST_SEED, description="seed of the distractors and their order")

    judged: ClassVar[Judged] = Judged(
        "a crafting game, in which items are gathered and crafted by recipes until the goal item is made", "crafting"
    )
    has_layouts: ClassVar[bool] = True

    def make(self) -> AgentEnv:
        from selfimprove.envs.textcraft.env import TextCraft

        return TextCraft(_book(self.recipes), self.seed)

    def instruction(self) -> str:
        from selfimprove.envs.textcraft.env import TextCraft

        return TextCraft.instruction

    def layouts(self, count: int) -> list[AgentEnv]:
        """See ``TextParams``: layouts differ in distractors and in the order of the commands."""
        return [self.model_copy(update={"seed": self.seed + i}).make() for i in range(count)]

    @classmethod
    def agentgym(cls) -> AgentGym:
        from selfimprove.envs.textcraft.agentgym import TEXTCRAFT, TextCraftSlot

        return AgentGym(TEXTCRAFT, TextCraftSlot.world)


@lru_cache(maxsize=2)
def _book(path: str | None) -> RecipeBook:
    """The recipe book, read once and shared by all copies."""
    from selfimprove.envs.textcraft.recipes import RecipeBook

    return RecipeBook.load(None if path is None else Path(path))
