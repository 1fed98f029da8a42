"""Encodes pairs as token ids, in the same way for policy and opponent.

In the pair ::

    prompt     user       "Question: Which river crosses Ostrava?"
    real       assistant  "Thought: ... Action: search[Ostrava]"   weight 1
               user       "\\nObservation: Ostrava lies on the Oder ..."
               assistant  "Thought: ... Action: finish[Oder]"      weight 1
    generated  assistant  "Thought: ... Action: finish[Elbe]"      weight 1

the policy's own messages and their end-of-turn tokens are scored on both sides; prompt and observations are context
(docs/spin.md, S13 and S32).
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

from selfimprove.core.chat import ChatFormat
from selfimprove.core.errors import UserError
from selfimprove.core.records import Message, Pair
from selfimprove.methods.spin.pair_config import PairParams
from selfimprove.training.encode import EncodedExample
from selfimprove.training.packing import MicroBatch
from selfimprove.training.report import PairCounters


@dataclass(frozen=True)
class EncodedPair:
    """Both sides, each including the prompt. The weight of scored tokens is 1, of all others 0."""

    real: EncodedExample
    generated: EncodedExample

    @property
    def identical(self) -> bool:
        """Whether the sides are equal, in which case the pair has no gradient."""
        return self.real == self.generated

    @property
    def key(self) -> str:
        """Hash of everything that the pair's scores depend on."""
        sides = [[side.ids, side.token_weights] for side in (self.real, self.generated)]
        return blake2b(json.dumps(sides).encode(), digest_size=16).hexdigest()


def lengths_of(pairs: Sequence[EncodedPair]) -> list[int]:
    """Number of tokens of each pair, both sides together."""
    return [len(pair.real.ids) + len(pair.generated.ids) for pair in pairs]


def sequences_of(pairs: Sequence[EncodedPair]) -> list[EncodedExample]:
    """The sides of all pairs as one list: real, generated, real, generated, …."""
    return [side for pair in pairs for side in (pair.real, pair.generated)]


def side_rows(micro: MicroBatch, row_tokens: int) -> MicroBatch:
    """A micro-batch of pairs as one of their sides, numbered as in ``sequences_of``: real before generated.

    Both sides of a pair share a row, except with ``row_tokens`` 1.
    """
    rows = tuple(tuple(side for index in row for side in (2 * index, 2 * index + 1)) for row in micro)
    return tuple((side,) for row in rows for side in row) if row_tokens == 1 else rows


def pairs_of(sequences: Sequence[EncodedExample]) -> list[EncodedPair]:
    """The inverse of ``sequences_of``."""
    return [EncodedPair(*sequences[start : start + 2]) for start in range(0, len(sequences), 2)]


def encode_pairs(pairs: Sequence[Pair], chat: ChatFormat, cfg: PairParams) -> tuple[list[EncodedPair], PairCounters]:
    """Encode all pairs, in order. Pairs that cannot be trained on are dropped and counted."""
    counters = PairCounters()
    encoded = []
    for pair in pairs:
        try:
            one = encode_pair(pair, chat, cfg, counters)
        except UserError as error:
            raise UserError(f"pair {pair.id!r}: {error}") from None
        if one is not None:
            encoded.append(one)
            counters.pairs += 1
            counters.identical += one.identical
    return encoded, counters


def encode_pair(pair: Pair, chat: ChatFormat, cfg: PairParams, counters: PairCounters) -> EncodedPair | None:
    """Encode one pair, or return None (counted) if it is too long or a side has no scored token.

    With ``truncate``, an overlong pair's prompt is cut to ``max_prompt_length``, equally for both sides. Each response
    is then cut to the rest of ``max_length``, and a cut response has no end-of-turn token. The original always cuts
    responses to ``max_length`` minus ``max_prompt_length``, however short the prompt is.

    Raises:
        UserError: the chat template refuses the dialogue, a side does not start with an assistant message, or a
            message of another role has a weight.
    """
    prompt = chat.encode(pair.prompt, add_generation_prompt=True).ids
    sides = [_response(pair.prompt, prompt, side, chat) for side in (pair.real, pair.generated)]
    cut_before = sum(side[-1].finish == "length" for side in (pair.real, pair.generated))
    if len(prompt) + max(len(ids) for ids, _ in sides) > cfg.max_length:
        if cfg.overlong == "drop":
            counters.dropped_long += 1
            return None
        size = cfg.max_prompt_length or cfg.max_length // 2
        if len(prompt) > size:
            prompt = prompt[-size:] if cfg.truncation == "keep_end" else prompt[:size]
            counters.truncated_prompts += 1
        budget = cfg.max_length - len(prompt)
        counters.truncated_responses += sum(len(ids) > budget for ids, _ in sides)
        sides = [(ids[:budget], weights[:budget]) for ids, weights in sides]
    encoded = [EncodedExample(prompt + ids, [0.0] * len(prompt) + weights) for ids, weights in sides]
    for side in encoded:
        side.token_weights[0] = 0.0  # no token precedes the first one, so it can't be predicted
    if not all(side.trained for side in encoded):
        counters.dropped_empty += 1
        return None
    counters.cut_responses += cut_before
    return EncodedPair(*encoded)


def _response(
    prompt: Sequence[Message], opening: list[int], messages: Sequence[Message], chat: ChatFormat
) -> tuple[list[int], list[float]]:
    """Ids and weights of one side, after the prompt's ids ``opening`` and up to the last scored token."""
    if not messages or messages[0].role != "assistant":
        raise UserError("a side must begin with an assistant message; fix the stage that created the pair.")
    if any(message.weight and message.role != "assistant" for message in messages):
        raise UserError("only assistant messages can have a weight; fix the stage that created the pair.")
    messages = [_without_end(message, chat) for message in messages]
    dialogue = chat.encode([*prompt, *messages])
    if dialogue.ids[: len(opening)] != opening:
        raise UserError(
            "the chat template renders the prompt differently once a reply follows; choose another with the param "
            "chat_template."
        )
    weights = [0.0] * len(dialogue.ids)
    start = stop = len(opening)
    for message, span in zip(messages, dialogue.spans[len(prompt) :], strict=True):
        if message.weight:
            weights[span.start : span.stop] = [1.0] * (span.stop - span.start)
            stop = span.stop
    return dialogue.ids[start:stop], weights[start:stop]


def _without_end(message: Message, chat: ChatFormat) -> Message:
    """Strip end-of-turn tokens from a message's text or ids, so that the template's is the only one."""
    if message.role != "assistant":
        return message
    if message.token_ids is not None:
        ids = list(message.token_ids)
        while ids and ids[-1] in chat.stop_ids:
            ids.pop()
        return message.model_copy(update={"token_ids": ids})
    content = message.content
    ends = {chat.end_text, *map(chat.token_text, chat.stop_ids)}
    while found := [end for end in ends if content.rstrip().endswith(end)]:
        content = content.rstrip().removesuffix(found[0])
    return message.model_copy(update={"content": content})
