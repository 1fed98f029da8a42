"""Encodes examples as token ids and token weights (the loss mask), and counts everything that is left out.

Of the dialogue ::

    user       "Mia has 3 apples and buys 4. How many?"     weight 0
    assistant  "3 + 4 = 8. \\boxed{8}"                       weight 0
    user       "The answer is incorrect. Please try again."  weight 0
    assistant  "3 + 4 = 7. \\boxed{7}"                       weight 12.18

only the last message's tokens and the end-of-turn token after it carry weight (docs/rise.md, R22 and R26). Ids and
spans come from the one chat format, never from a second tokenisation.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import BaseModel

from selfimprove.core.chat import ChatFormat, Encoded
from selfimprove.core.errors import UserError
from selfimprove.core.records import Example, Message


@dataclass(frozen=True)
class EncodedExample:
    """One training sequence: ``ids`` [T] and ``token_weights`` [T]; weight 0 is context, as ``ids[0]`` always is."""

    ids: list[int]
    token_weights: list[float]

    @property
    def trained(self) -> int:
        """Number of tokens with weight."""
        return sum(1 for weight in self.token_weights if weight)

    @property
    def weight(self) -> float:
        """Mean weight of the trained tokens: the example's weight when one message is trained on."""
        return sum(self.token_weights) / self.trained


class EncodeCounters(BaseModel):
    """What happened to the examples on their way to token ids."""

    examples: int = 0
    truncated: int = 0
    """lost their oldest turns (or, in Reflect-RL, the left side of their prompt) to fit ``max_length``"""
    dropped_long: int = 0
    """left out: even the opening and the final attempt alone exceed ``max_length``"""
    dropped_empty: int = 0
    """left out: no token has weight"""
    cut_attempts: int = 0
    """trained attempts that ended at the generation limit, and so have no end-of-turn token"""


def encode_examples(
    examples: Sequence[Example], chat: ChatFormat, max_length: int, *, pinned: int | None = None
) -> tuple[list[EncodedExample], EncodeCounters]:
    """Encode all examples, in order; those that cannot be trained on are left out and counted.

    Args:
        max_length: longest sequence, in tokens, without what the template writes after a trained last message. A
            longer dialogue loses its oldest (attempt, feedback) pairs, whole, until it fits; the opening and the final
            message stay.
        pinned: how many messages open a dialogue and always stay (a worked example and the problem, say); None
            means any system messages and the first user message.
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
    ids = dialogue.ids[:max_length]  # what the template writes after the last message may be beyond
    weights = [0.0] * len(ids)
    for message, span in zip(messages, dialogue.spans, strict=True):
        if message.weight:
            weights[span.start : span.stop] = [message.weight] * (span.stop - span.start)
            counters.cut_attempts += message.finish == "length"
    weights[0] = 0.0  # nothing comes before the first token that could predict it
    if not any(weights):
        counters.dropped_empty += 1
        return None
    counters.truncated += shortened
    return EncodedExample(ids, weights)


def _length(messages: Sequence[Message], dialogue: Encoded) -> int:
    """Tokens, but for those that the template writes after a trained message at the end, which nobody learns."""
    return dialogue.spans[-1].stop if messages[-1].weight else len(dialogue.ids)


def _opening(messages: list[Message]) -> int:
    for index, message in enumerate(messages):
        if message.role == "user":
            return index + 1
    return 0
