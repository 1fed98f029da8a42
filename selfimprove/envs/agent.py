"""What an environment that is acted in promises: reset, step, snapshot; and, for tree search, states one can step from.

An environment (``AgentEnv``) is one place in one episode, as its original is: TextCraft, WebShop, ScienceWorld. A world
(``World``) is what methods play in: ``step(state, action)`` returns the next state and leaves the old one as it was,
so a tree can grow from any node and hundreds of episodes share one object. Embedded environments become worlds
by snapshots (``EmbeddedWorld``), slow or remote ones by replaying actions on a pool of copies (``envs/replay.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol


class Step(NamedTuple):
    """What an action led to.

    ``reward`` is the episode's score so far, normalised to [0, 1]. ``info`` holds
    ``raw_score`` (the environment's own scale), ``valid`` (False: the environment did not understand or could not do
    it), and ``disaster`` (True: a fatal mistake, a negative score in the original; ``reward`` is then 0).
    """

    observation: str
    reward: float
    done: bool
    info: Mapping[str, Any]


class Move(NamedTuple):
    """What an expert would do next and why: one short first-person sentence, and an action that ``step`` takes."""

    thought: str
    action: str


class AgentEnv(Protocol):
    """One episode at a time; two copies never share state."""

    @property
    def name(self) -> str:
        """As in the params: textcraft, webshop, sciworld."""
        ...

    @property
    def instruction(self) -> str:
        """The first user message: what the world is and how to act in it."""
        ...

    def task_ids(self) -> Sequence[int]:
        """Every task there is, in a fixed order."""
        ...

    def reset(self, task_id: int) -> str:
        """Begin a task; the first observation.

        Raises:
            UserError: no such task.
        """
        ...

    def step(self, action: str) -> Step:
        """Act. Any text is allowed: what makes no sense is answered as the original answers it."""
        ...

    def snapshot(self) -> Any:
        """An immutable value from which ``restore`` brings this moment back."""
        ...

    def restore(self, snapshot: Any) -> None:
        """Return to the moment of a snapshot, taken of any copy of this environment."""
        ...

    def valid_actions(self) -> list[str] | None:
        """Every action that makes sense now, sorted; None where they can't be listed."""
        ...

    def expert(self) -> list[Move]:
        """The rest of a shortest (or the known) way to reward 1 from here; [] when done or when there is none."""
        ...


class World(Protocol):
    """Where methods play. States are opaque, immutable and cheap to keep."""

    @property
    def name(self) -> str:
        """As ``AgentEnv``."""
        ...

    @property
    def instruction(self) -> str:
        """As ``AgentEnv``."""
        ...

    async def reset(self, task_id: int) -> tuple[Any, str]:
        """Begin a task: (state, first observation).

        Raises:
            UserError: no such task, or the environment can't be reached at all.
            EnvError: this episode can't go on; others may.
        """
        ...

    async def step(self, state: Any, action: str) -> tuple[Any, Step]:
        """Act in ``state``, which stays as it was. Raises: as ``reset``."""
        ...

    async def close(self) -> None:
        """Release servers, processes and connections."""
        ...


class EnvError(Exception):
    """The environment failed this episode for good (after its own retries); the episode is recorded as blocked."""


@dataclass(frozen=True)
class EmbeddedWorld:
    """A world over one embedded environment, which is put into the asked-for state before every step."""

    env: AgentEnv

    @property
    def name(self) -> str:
        """The environment's."""
        return self.env.name

    @property
    def instruction(self) -> str:
        """The environment's."""
        return self.env.instruction

    async def reset(self, task_id: int) -> tuple[Any, str]:
        """See ``World``."""
        observation = self.env.reset(task_id)
        return self.env.snapshot(), observation

    async def step(self, state: Any, action: str) -> tuple[Any, Step]:
        """See ``World``."""
        self.env.restore(state)
        step = self.env.step(action)
        return self.env.snapshot(), step

    async def close(self) -> None:
        """Nothing to release."""
