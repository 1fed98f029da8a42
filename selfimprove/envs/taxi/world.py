"""The ``env`` section of DangerousTaxi."""

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from selfimprove.envs.interface import AgentEnv, EnumeratedEnv
from selfimprove.envs.labels import Spelling
from selfimprove.envs.params import Judged, ListedParams


class TaxiParams(ListedParams):
    """DangerousTaxi: fetch the passenger, bring them to the destination, never hit a wall."""

    name: Literal["taxi"] = "taxi"
    mode: Literal["pickup", "dropoff", "full", "none"] = Field(
        default="full", description="mode of an episode that has no level"
    )
    with_history: bool = Field(default=False, description="show the map after every action")

    judged: ClassVar[Judged | None] = Judged(
        "a taxi game on a grid, in which T is the taxi, P the passenger, D the destination, O the taxi on the waiting "
        "passenger and X the taxi with the passenger aboard",
        "taxi",
        "Goal: fetch the passenger P, then bring them to the destination D, and never drive into a wall.",
    )
    levels_a_task: ClassVar[int] = 3
    mishap: ClassVar[str] = "\nThe episode is over: that action changed nothing, which is dangerous."

    @classmethod
    def rules(cls, max_turns: int) -> str:
        """The rules given to a model, without the answer format."""
        from selfimprove.envs.taxi.env import RULES

        return f"{RULES}\nYou have {max_turns} actions. Type an action's number or its words."

    def make(self, tasks: Path | None = None, *, training: bool = False) -> EnumeratedEnv:
        from selfimprove.envs.taxi.listed import EnumeratedTaxi

        return EnumeratedTaxi(self.mode, self.max_turns, self.with_history, self.curriculum_index)

    def acted(self) -> AgentEnv:
        from selfimprove.envs.taxi.env import Taxi

        return Taxi(self.mode, self.max_turns, self.with_history)

    def instruction(self) -> str:
        from selfimprove.envs.taxi.listed import INSTRUCTION

        return INSTRUCTION

    def spelling(self) -> Spelling:
        """See ``ListedParams``: the labels are always 0 to 5."""
        from selfimprove.envs.taxi.env import LABELS

        return Spelling(self.name, LABELS)
