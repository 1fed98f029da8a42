"""The definition of a dialect of AgentGym's HTTP protocol for our server; each environment's folder declares its own.

A dialect is a table of calls, each a function from a held environment and the request's fields to the answer's JSON:
AgentGym's own calls and ours (docs/agent-r.md, A42). The schema of the request is declared with it. ``server.py``
receives calls and holds environments.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from selfimprove.envs.interface import AgentEnv


class Refused(Exception):
    """A request that cannot be served; the answer contains the sentence."""


@dataclass
class Open:
    """An environment that a client holds.

    ``used``: time of the last call; ``first``: the task's first observation; ``detail``: the answer of ``/detail``,
    replaced but never modified; ``lock``: allows one call at a time.
    """

    number: int
    env: AgentEnv
    used: float = 0.0
    resets: int = 0
    first: str = ""
    detail: dict[str, Any] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Ask(BaseModel):
    """A request's fields; unknown fields are ignored, as in the originals."""

    model_config = ConfigDict(extra="ignore", populate_by_name=True)


class Create(Ask):
    """TextCraft's clients send their own recipes and goal, which the original's reset discards immediately."""


class Which(Ask):
    """``env_idx`` in WebShop's dialect, which is renamed before the fields are read."""

    id: int


class Begin(Which):
    """Specifies the task; None: any."""

    data_idx: int | None = None


class Act(Which):
    """Any text is an action."""

    action: str


class Endpoint(NamedTuple):
    """A call: ``answer(held environment, fields)`` returns its JSON."""

    method: str
    path: str
    fields: type[Which]
    answer: Callable[[Open, Any], Any]


@dataclass(frozen=True)
class Dialect:
    """What distinguishes a server: its greeting, its field names, its calls.

    ``created(held)`` prepares a new environment and answers ``/create``. ``threads``: the environment's calls are slow
    and run in threads; otherwise they run in the event loop, one after the other.
    """

    greeting: str
    created: Callable[[Open], Any]
    endpoints: tuple[Endpoint, ...]
    renamed: Mapping[str, str] = field(default_factory=dict)
    closed: Any = True
    threads: bool = False


def begin(held: Open, task_id: int) -> str:
    """Reset to a task; returns the first observation."""
    held.first = held.env.reset(task_id)
    held.resets += 1
    return held.first
