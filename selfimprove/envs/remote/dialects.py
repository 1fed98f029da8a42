"""What makes a dialect of AgentGym's HTTP protocol as our server speaks it; each is in its environment's folder.

A dialect is a table of calls, each a function from a held environment and the request's fields to the answer's JSON:
AgentGym's own calls and ours (docs/agent-r.md, A42). What clients must have sent is a schema beside them; how calls
arrive and how environments are held is ``server.py``.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from selfimprove.envs.interface import AgentEnv


class Refused(Exception):
    """A request that can't be served; the sentence goes into the answer."""


@dataclass
class Open:
    """An environment that a client holds.

    ``used``: when it was last called; ``first``: the task's first observation; ``detail``: what ``/detail`` tells,
    replaced but never changed; ``lock``: one call at a time.
    """

    number: int
    env: AgentEnv
    used: float = 0.0
    resets: int = 0
    first: str = ""
    detail: dict[str, Any] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Ask(BaseModel):
    """A request's fields; others are ignored, as in the originals."""

    model_config = ConfigDict(extra="ignore", populate_by_name=True)


class Create(Ask):
    """TextCraft's clients send recipes and a goal of their own, which the original's reset forgets at once."""


class Which(Ask):
    """``env_idx`` in WebShop's dialect, which is renamed before the fields are read."""

    id: int


class Begin(Which):
    """Which task; None: any."""

    data_idx: int | None = None


class Act(Which):
    """Any text is an action."""

    action: str


class Endpoint(NamedTuple):
    """A call: ``answer(held environment, fields)`` gives its JSON."""

    method: str
    path: str
    fields: type[Which]
    answer: Callable[[Open, Any], Any]


@dataclass(frozen=True)
class Dialect:
    """What distinguishes a server: its greeting, its names of the fields, its calls.

    ``created(held)`` prepares a new environment and answers ``/create``. ``threads``: the environment's calls take
    long and are run in threads; else they are run where they are, one after the other.
    """

    greeting: str
    created: Callable[[Open], Any]
    endpoints: tuple[Endpoint, ...]
    renamed: Mapping[str, str] = field(default_factory=dict)
    closed: Any = True
    threads: bool = False


def begin(held: Open, task_id: int) -> str:
    """Reset to a task: the first observation."""
    held.first = held.env.reset(task_id)
    held.resets += 1
    return held.first
