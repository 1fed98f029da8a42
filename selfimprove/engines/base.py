"""What every inference engine promises: one request in, n completions out, each from its own seed key."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from selfimprove.core.records import Finish, Message
from selfimprove.core.seeds import SeedKey

if TYPE_CHECKING:
    from selfimprove.core.chat import ChatFormat


@dataclass(frozen=True)
class Request:
    """Ask for ``n`` completions of a dialogue.

    Sample i draws its noise from ``seed.at(seed.sample + i)`` and from nothing else. ``temperature`` 0 is greedy. A
    completion ends at the model's end-of-turn token, just before the first of ``stop``, or after ``max_tokens``.
    ``allowed`` limits the completion to one of these strings (constrained decoding; remote engines that cannot
    promise it refuse). ``top_k`` 0 keeps every token; filters apply in the order top_k, top_p.

    ``choice``: one token decides (an action's label, say), and the answer tells how likely it was and how open the
    decision: see ``Choice``. ``max_tokens`` is then 1, and each of ``allowed`` one token of its own; without
    ``allowed`` the choice is among the whole vocabulary. ``cut_left``: a prompt too long for the context loses the
    first tokens of its first message; without it the request fails. ``keep_stop``: the stop string that ended a
    completion stays in its text, and in its ids where they spell exactly that text (else there are none); remote
    engines, which cannot tell it from an end of turn, refuse.
    """

    messages: Sequence[Message]
    seed: SeedKey
    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 1000
    stop: Sequence[str] = ()
    allowed: Sequence[str] | None = None
    top_k: int = 0
    choice: bool = False
    cut_left: bool = False
    keep_stop: bool = False


@dataclass(frozen=True)
class Choice:
    """A decision by one token: what a policy gradient needs of it (docs/reflect-rl.md, L6).

    All under the softmax of logits / temperature over the allowed tokens alone, which is the full softmax
    renormalised; top_p and top_k, which narrow what is drawn, do not count. Temperature 0 counts as 1.

    Attributes:
        prompt_ids: the prompt's token ids, after ``cut_left``.
        token: the token drawn.
        logprob: its natural log-probability.
        entropy: of the decision, in nats.
    """

    prompt_ids: list[int]
    token: int
    logprob: float
    entropy: float


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
    choice: Choice | None = None


def first_stop(text: str, stops: Sequence[str]) -> tuple[int, int] | None:
    """(start, end) of the first of ``stops`` in ``text``; of those that begin at one place, the one named first."""
    places = [(at, at + len(stop)) for stop in stops if (at := text.find(stop)) >= 0]
    return min(places, key=lambda place: place[0], default=None)


class EngineError(Exception):
    """This request failed for good (after the engine's own retries). The episode is recorded as blocked."""


class AnsweredLate(asyncio.CancelledError):
    """The request's episode was cancelled while a call's answer was on its way; it arrived, and can be kept."""

    def __init__(self, completions: list[Completion]) -> None:
        super().__init__()
        self.completions = completions


@dataclass
class EngineStats:
    """Counts since the engine was made. Occupancy = busy_slot_steps / slot_steps.

    Of the CPU engine: prompts are read ``prefill_blocks`` blocks of ``prefill_block_slots`` that there was room for.
    """

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
    prefill_blocks: int = 0
    prefill_block_slots: int = 0


class Engine(Protocol):
    """An inference engine. Hundreds of ``generate`` calls may wait at once; the engine batches them."""

    @property
    def stats(self) -> EngineStats:
        """Counts since the engine was made."""

    async def generate(self, request: Request) -> list[Completion]:
        """Return ``request.n`` completions, in sample order.

        Raises:
            EngineError: this request failed for good; others are not affected.
            UserError: the engine can't work at all (no key, endpoint refused); the stage ends.
        """

    def fits(self, messages: Sequence[Message], max_tokens: int) -> bool:
        """Whether the prompt and ``max_tokens`` more fit the context; True where only the endpoint knows."""

    async def close(self) -> None:
        """Release what the engine holds."""


@runtime_checkable
class AnswersInParts(Protocol):
    """An engine that makes several calls for one request, and is paid for each."""

    def parts(self, request: Request) -> AsyncIterator[list[Completion]]:
        """As ``Engine.generate``: the completions of each call, as soon as it is answered."""


class Templated:
    """Base of engines whose prompts are encoded here, by the chat format of their model."""

    chat: ChatFormat
    context: int

    def prompt_tokens(self, messages: Sequence[Message]) -> int:
        """How many tokens the prompt of these messages has."""
        return len(self.chat.encode(messages, add_generation_prompt=True).ids)

    def fits(self, messages: Sequence[Message], max_tokens: int) -> bool:
        """See ``Engine.fits``; methods drop their oldest turns until they do."""
        return self.prompt_tokens(messages) + max_tokens <= self.context


class Around:
    """Base of engines that pass requests on to another one: its counts, its context, and closing it."""

    def __init__(self, inner: Engine) -> None:
        self._inner = inner

    @property
    def stats(self) -> EngineStats:
        return self._inner.stats

    def fits(self, messages: Sequence[Message], max_tokens: int) -> bool:
        return self._inner.fits(messages, max_tokens)

    async def close(self) -> None:
        await self._inner.close()
