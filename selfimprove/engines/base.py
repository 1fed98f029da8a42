"""What every inference engine promises: one request in, n completions out, each from its own seed key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from selfimprove.records import Finish, Message
from selfimprove.seeds import SeedKey


@dataclass(frozen=True)
class Request:
    """Ask for ``n`` completions of a dialogue.

    Sample i draws its noise from ``seed.at(seed.sample + i)`` and from nothing else. ``temperature`` 0 is greedy. A
    completion ends at the model's end-of-turn token, just before the first of ``stop``, or after ``max_tokens``.
    ``allowed`` limits the completion to one of these strings (constrained decoding; remote engines that cannot
    promise it refuse).
    """

    messages: Sequence[Message]
    seed: SeedKey
    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 1000
    stop: Sequence[str] = ()
    allowed: Sequence[str] | None = None


@dataclass(frozen=True)
class Completion:
    """One sampled answer. ``token_ids`` (None from remote engines) leave out the end-of-turn token.

    ``logprobs``: natural log-probability, under the untempered and unfiltered model, of each of ``token_ids`` and,
    when ``finish`` is "stop" at the end-of-turn token, of that token too (so one longer than ``token_ids``).
    """

    text: str
    finish: Finish
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None


class EngineError(Exception):
    """This request failed for good (after the engine's own retries). The episode is recorded as blocked."""


@dataclass
class EngineStats:
    """Counts since the engine was made. Occupancy = busy_slot_steps / slot_steps."""

    requests: int = 0
    completions: int = 0
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    generated_tokens: int = 0
    slot_steps: int = 0
    busy_slot_steps: int = 0
    retries: int = 0
    failures: int = 0
    seconds: float = 0.0
    notes: dict[str, float] = field(default_factory=dict)


class Engine(Protocol):
    """An inference engine. Hundreds of ``generate`` calls may wait at once; the engine batches them."""

    @property
    def stats(self) -> EngineStats:
        """Counts since the engine was made."""
        ...

    async def generate(self, request: Request) -> list[Completion]:
        """Return ``request.n`` completions, in sample order.

        Raises:
            EngineError: this request failed for good; others are not affected.
            UserError: the engine can't work at all (no key, endpoint refused); the stage ends.
        """
        ...

    def fits(self, messages: Sequence[Message], max_tokens: int) -> bool:
        """Whether the prompt and ``max_tokens`` more fit the context; True where only the endpoint knows."""
        ...

    async def close(self) -> None:
        """Release what the engine holds."""
        ...
