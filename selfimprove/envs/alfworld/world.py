"""Params of ALFWorld: the built-in kitchen, or the games themselves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from selfimprove.envs.alfworld.kitchen_things import KINDS, Kind
from selfimprove.envs.interface import AgentEnv, EnumeratedEnv
from selfimprove.envs.labels import LABELS
from selfimprove.envs.params import ListedParams

if TYPE_CHECKING:
    from selfimprove.envs.alfworld.env import AlfWorld
    from selfimprove.envs.alfworld.kitchen import Kitchen

UNCUT = 10_000
"""The turn limit of the games: the adapter cuts the episode, so that a game can explain any path."""

OF_TEXTWORLD = ("games", "step_seconds", "blacklist")
"""Options of the backend ``textworld``."""


class AlfworldParams(ListedParams):
    """ALFWorld: household goals, in the built-in kitchen or in ALFWorld's own games."""

    name: Literal["alfworld"] = "alfworld"
    kinds: list[Kind] = Field(default=["pick_and_place"], min_length=1, description="task types")
    thing: str | None = Field(default="tomato", description="the goal's object; null: any")
    place: str | None = Field(default="microwave", description="the goal's receptacle; null: any")
    backend: Literal["kitchen", "textworld"] = Field(
        default="kitchen", description="kitchen: built in; textworld: ALFWorld itself (make env-alfworld)"
    )
    games: str | None = Field(
        default=None, description="textworld: folder of downloaded games; null: games are generated here"
    )
    step_seconds: float = Field(
        default=120.0, gt=0, description="textworld: seconds after which a step is aborted and its process ended"
    )
    blacklist: str | None = Field(default=None, description="textworld: file that records games that crashed")

    played_as: ClassVar[tuple[str, ...]] = ("kitchen",)

    @classmethod
    def to_play(cls, name: str, configured: ListedParams) -> ListedParams:
        """See ``ListedParams``: ``alfworld`` is ALFWorld itself, ``kitchen`` the built-in one; default: every goal."""
        if not isinstance(configured, cls):
            configured = cls(**configured.common(), kinds=list(KINDS), thing=None, place=None)
        return configured.model_copy(update={"backend": "textworld" if name == "alfworld" else "kitchen"})

    @model_validator(mode="after")
    def _of_the_backend(self) -> AlfworldParams:
        """Refuse options that have no effect with this backend."""
        fields = type(self).model_fields
        for key in OF_TEXTWORLD if self.backend == "kitchen" else ():
            if getattr(self, key) != fields[key].default:
                raise ValueError(f"{key} is an option of textworld, but backend is kitchen; remove it")
        return self

    def make(self, tasks: Path | None = None, *, training: bool = False) -> EnumeratedEnv:
        """See ``ListedParams``.

        Raises:
            UserError: no goal has this thing and place; a curriculum level is set; ALFWorld's environment or its folder
                of games is missing.
        """
        from selfimprove.envs.alfworld.listed import EnumeratedKitchen
        from selfimprove.envs.listed import refuse_level

        refuse_level(self.name, self.curriculum_index)
        game = self._game(UNCUT)
        return EnumeratedKitchen(game, self.max_turns, LABELS[self.labels], self.shuffle_action, self.seed)

    def acted(self) -> AgentEnv:
        game = self._game(self.max_turns)
        game.name = self.name
        return game

    def _game(self, max_turns: int) -> Kitchen | AlfWorld:
        from selfimprove.envs.alfworld.kitchen import Kitchen

        if self.backend == "textworld":
            return self._textworld(max_turns)
        return Kitchen(self.seed, self.kinds, self.thing, self.place, max_turns)

    def _textworld(self, max_turns: int) -> AlfWorld:
        """ALFWorld itself; all copies share one process. A missing environment is reported by ``reset``."""
        from selfimprove.envs.alfworld.env import AlfWorld, shared_process
        from selfimprove.envs.alfworld.games import Blacklist

        folder = None if self.games is None else Path(self.games)
        blacklist = Blacklist(None if self.blacklist is None else Path(self.blacklist), folder)
        process = shared_process(self.step_seconds)
        return AlfWorld(
            self.seed, self.kinds, self.thing, self.place, max_turns,
            folder=folder, process=process, blacklist=blacklist,
        )  # fmt: skip
