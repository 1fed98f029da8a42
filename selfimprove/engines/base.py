"""The interface of every inference engine: one request in, n completions out, each drawn from its own seed key."""

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
    """A request for ``n`` completions of a dialogue.

    Sample i draws its noise from ``seed.at(seed.sample + i)`` and nothing else. ``temperature`` 0 is greedy. A
    completion ends at the model's end-of-turn token, just before the first of ``stop``, or after ``max_tokens``.
    ``allowed`` limits the completion to one of these strings (constrained decoding; remote engines cannot guarantee
    it and refuse). ``top_k`` 0 keeps every token; filters apply in the order top_k, top_p.

    ``choice``: a decision by a single token (an action's label, say); the completion also contains a ``Choice``.
    ``max_tokens`` must be 1 and each of ``allowed`` a distinct single token; without ``allowed``, the choice is among
    the whole vocabulary. ``cut_left``: a prompt too long for the context loses the first tokens of its first message;
    without it the request fails. ``keep_stop``: the stop string that ended a completion stays in its text, and in its
    ids if they spell exactly that text (otherwise there are none). Remote engines refuse it, because they cannot
    distinguish a stop string from an end of turn.
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
    """A decision by one token, with the values that a policy gradient needs (docs/reflect-rl.md, L6).

    ``logprob`` and ``entropy`` refer to the softmax of logits / temperature over the allowed tokens that pass top_k and
    top_p, which is the distribution that is sampled. Temperature 0 counts as 1.

    Attributes:
        prompt_ids: the prompt's token ids, after ``cut_left``.
        token: the drawn token.
        logprob: its natural log-probability.
        entropy: the distribution's entropy, in nats.
    """

    prompt_ids: list[int]
    token: int
    logprob: float
    entropy: float


@dataclass(frozen=True)
class Completion:
    """One sampled answer. ``token_ids`` (None from remote engines) exclude the end-of-turn token.

    ``logprobs``: natural log-probability of each of ``token_ids`` under the untempered, unfiltered model. If ``finish``
    is "stop" because of the end-of-turn token, that token's is appended (one more than ``token_ids``).
    """

    text: str
    finish: Finish
    token_ids: list[int] | None = None
    logprobs: list[float] | None = None
    choice: Choice | None = None


def first_stop(text: str, stops: Sequence[str]) -> tuple[int, int] | None:
    """(start, end) of the first of ``stops`` in ``text``; of several at one position, the one listed first."""
    places = [(at, at + len(stop)) for stop in stops if (at := text.find(stop)) >= 0]
    return min(places, key=lambda place: place[0], default=None)


class EngineError(Exception):
    """This request failed permanently (after the engine's own retries). The episode is recorded as blocked."""


class AnsweredLate(asyncio.CancelledError):
    """The request's episode was cancelled during a call, but the call's answer arrived and can be kept."""

    def __init__(self, completions: list[Completion]) -> None:
        super().__init__()
        self.completions = completions


@dataclass
class EngineStats:
    """Counts since the engine was created. Occupancy = busy_slot_steps / slot_steps.

    CPU engine only: ``prefill_blocks`` of ``prefill_block_slots`` available blocks were used for prompts.
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
    """An inference engine. Hundreds of ``generate`` calls may wait concurrently; the engine batches them."""

    @property
    def stats(self) -> EngineStats:
        """Counts since the engine was created."""

    async def generate(self, request: Request) -> list[Completion]:
        """Return ``request.n`` completions, in sample order.

        Raises:
            EngineError: this request failed permanently; others are not affected.
            UserError: the engine cannot work at all (no key, endpoint refused); the stage ends.
        """

    def fits(self, messages: Sequence[Message], max_tokens: int) -> bool:
        """Whether the prompt plus ``max_tokens`` fit the context; True if only the endpoint knows its limit."""

    async def close(self) -> None:
        """Release the engine's resources."""


@runtime_checkable
class AnswersInParts(Protocol):
    """An engine that splits a request into several calls, each of which may cost money.

    ``answered_before``: whether an earlier run of the stage has answers from it; its journal says so.
    """

    answered_before: bool

    def parts(self, request: Request) -> AsyncIterator[list[Completion]]:
        """Like ``Engine.generate``, but yields the completions of each call as soon as it returns."""


class Templated:
    """Base of engines that encode prompts locally, with their model's chat format."""

    chat: ChatFormat
    context: int

    def prompt_tokens(self, messages: Sequence[Message]) -> int:
        """The number of tokens in the prompt of these messages."""
        return len(self.chat.encode(messages, add_generation_prompt=True).ids)

    def fits(self, messages: Sequence[Message], max_tokens: int) -> bool:
        """See ``Engine.fits``; methods drop their oldest turns until this holds."""
        return self.prompt_tokens(messages) + max_tokens <= self.context


class Around:
    """Base of engine wrappers: delegates counts, context and closing to the inner engine."""

    def __init__(self, inner: Engine) -> None:
        self._inner = inner

    @property
    def stats(self) -> EngineStats:
        return self._inner.stats

    def fits(self, messages: Sequence[Message], max_tokens: int) -> bool:
        return self._inner.fits(messages, max_tokens)

    async def close(self) -> None:
        await self._inner.close()
