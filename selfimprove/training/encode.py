"""Encodes examples as token ids and token weights (the loss mask), and counts everything that is dropped.

In the dialogue ::

    user       "Mia has 3 apples and buys 4. How many?"     weight 0
    assistant  "3 + 4 = 8. \\boxed{8}"                       weight 0
    user       "The answer is incorrect. Please try again."  weight 0
    assistant  "3 + 4 = 7. \\boxed{7}"                       weight 12.18

only the last message's tokens and its end-of-turn token have weight (docs/rise.md, R22 and R26). Ids and spans come
from a single chat format, never from a second tokenisation.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel

from selfimprove.core.chat import ChatFormat, Encoded
from selfimprove.core.errors import UserError
from selfimprove.core.records import Example, Message
from selfimprove.core.sums import float_sum


@dataclass(frozen=True)
class EncodedExample:
    """One training sequence: ``ids`` [T] and ``token_weights`` [T]. Weight 0 is context, which includes ``ids[0]``."""

    ids: list[int]
    token_weights: list[float]

    @property
    def trained(self) -> int:
        """Number of tokens with weight."""
        return sum(1 for weight in self.token_weights if weight)

    @property
    def weight(self) -> float:
        """Mean weight of the trained tokens, which is the example's weight if one message is trained on."""
        return float_sum(self.token_weights) / self.trained


class EncodeCounters(BaseModel):
    """Counts of examples, truncated and dropped ones."""

    examples: int = 0
    truncated: int = 0
    """lost their oldest turns (or, in Reflect-RL, the left side of their prompt) to fit ``max_length``"""
    dropped_long: int = 0
    """dropped: the opening and the final attempt together exceed ``max_length``"""
    dropped_empty: int = 0
    """dropped: no token has weight"""
    cut_attempts: int = 0
    """trained attempts that ended at the generation limit, and so have no end-of-turn token"""


def encode_examples(
    examples: Sequence[Example], chat: ChatFormat, max_length: int, *, pinned: int | None = None
) -> tuple[list[EncodedExample], EncodeCounters]:
    """Encode all examples, in order. Examples that cannot be trained on are dropped and counted.

    Args:
        max_length: longest sequence in tokens, without template text after a trained last message. A longer dialogue
            loses its oldest (attempt, feedback) pairs until it fits; the opening and the final message are kept.
        pinned: number of messages at the start of a dialogue that are always kept (such as a worked example and the
            problem). By default, these are any system messages and the first user message.
    """
    counters = EncodeCounters()
    encoded = []
    for example in examples:
        one = encode_example(example, chat, max_length, counters, pinned=pinned)
        if one is not None:
            encoded.append(one)
            counters.examples += 1
    return encoded, counters


def encode_example(
    example: Example, chat: ChatFormat, max_length: int, counters: EncodeCounters, *, pinned: int | None = None
) -> EncodedExample | None:
    """Encode one example, or None (counted) if none of its tokens can be trained on.

    Raises:
        UserError: the chat template refuses the dialogue (names the example).
    """
    messages = list(example.messages)
    if not any(message.weight for message in messages):
        counters.dropped_empty += 1
        return None
    opening = _opening(messages) if pinned is None else pinned
    try:
        dialogue = chat.encode(messages)
        shortened = False
        while _length(messages, dialogue) > max_length:
            if len(messages) - opening < 3:
                counters.dropped_long += 1
                return None
            del messages[opening : opening + 2]
            shortened = True
            dialogue = chat.encode(messages)
    except UserError as error:
        raise UserError(f"example {example.id!r}: {error}") from None
    ids = dialogue.ids[:max_length]  # template text after the last message may exceed it
    weights = [0.0] * len(ids)
    for message, span in zip(messages, dialogue.spans, strict=True):
        if message.weight:
            weights[span.start : span.stop] = [message.weight] * (span.stop - span.start)
            counters.cut_attempts += message.finish == "length"
    weights[0] = 0.0  # no token precedes the first one, so it can't be predicted
    if not any(weights):
        counters.dropped_empty += 1
        return None
    counters.truncated += shortened
    return EncodedExample(ids, weights)


def _length(messages: Sequence[Message], dialogue: Encoded) -> int:
    """Number of tokens, except template text after a trained last message, which is not trained on."""
    return dialogue.spans[-1].stop if messages[-1].weight else len(dialogue.ids)


def _opening(messages: list[Message]) -> int:
    return next((place for place, message in enumerate(messages, start=1) if message.role == "user"), 0)
