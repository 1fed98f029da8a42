"""Decisions by one token, drawn from the logits of the prefill pass: no slot, no decoding step.

Reflect-RL's policies need this at every step: the next token's logits at the end of each prompt, one draw, and its
probability among the allowed tokens. Also builds the trie of allowed outputs.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from selfimprove.core.chat import ChatFormat
from selfimprove.core.records import Message
from selfimprove.engines.base import Request
from selfimprove.engines.sampling import choose, score_choices, uniforms


class Drawn(NamedTuple):
    """A token, its log-probability under the unmodified model, and ``logprob`` and ``entropy`` as in ``Choice``."""

    token: int
    model_logprob: float
    logprob: float
    entropy: float


def decide(
    logits: torch.Tensor, asked: Mapping[int, tuple[Request, Sequence[int] | None]], sample: int = 0
) -> dict[int, Drawn]:
    """Draw one sample for each request.

    Args:
        logits: [rows, vocabulary]; with a constant number of rows, a row's result depends on that row alone.
        asked: by row, a request and the ids it may choose among (None: all).
        sample: index of the sample, for requests with n > 1.
    """
    rows, device = len(logits), logits.device
    keys, temperature = np.zeros(rows, dtype=np.uint64), np.zeros(rows, dtype=np.float32)
    top_p, top_k = np.ones(rows, dtype=np.float32), np.zeros(rows, dtype=np.int64)
    alike: dict[tuple[int, ...] | None, list[int]] = {}
    for row, (request, ids) in asked.items():
        keys[row] = request.seed.at(request.seed.sample + sample).bits()
        temperature[row], top_p[row], top_k[row] = request.temperature, request.top_p, request.top_k
        alike.setdefault(None if ids is None else tuple(ids), []).append(row)
    warm = torch.from_numpy(temperature).to(device)
    nucleus = torch.from_numpy(top_p).to(device) if (top_p < 1).any() else None
    most = torch.from_numpy(top_k).to(device) if top_k.any() else None
    drawn, logprob = choose(
        logits,
        torch.from_numpy(uniforms(keys, np.zeros(rows, dtype=np.uint64))).to(device),
        warm,
        nucleus,
        [(group, ids) for ids, group in alike.items() if ids is not None],
        most,
    )
    tokens, model = drawn.tolist(), logprob.tolist()
    found: dict[int, Drawn] = {}
    for ids, group in alike.items():
        at = torch.as_tensor(group, device=device)
        filters = [None if one is None else one[at] for one in (nucleus, most)]
        scores = (score.tolist() for score in score_choices(logits[at], warm[at], drawn[at], ids, *filters))
        for row, chosen, entropy in zip(group, *scores, strict=True):
            found[row] = Drawn(tokens[row], model[row], chosen, entropy)
    return found


def allowed_trie(chat: ChatFormat, allowed: tuple[str, ...], choice: bool) -> dict[int, dict]:
    """The trie of token sequences for a completion that must be one of ``allowed``, each with the end token.

    A node maps each id that may come next to the node after it.

    Raises:
        ValueError: ``allowed`` is empty, the tokenizer cannot write one of its outputs or, for a choice, the outputs
            are not distinct single tokens.
    """
    if not allowed:
        raise ValueError("allowed is empty, so no completion is possible")
    for text in allowed:
        if not chat.token_bytes_known(text):
            raise ValueError(f"the tokenizer cannot write the allowed output {text!r}")
    outputs = [chat.content_ids(Message(role="assistant", content=text)) for text in allowed]
    if choice and (len({tuple(ids) for ids in outputs}) < len(outputs) or any(len(ids) != 1 for ids in outputs)):
        raise ValueError("the outputs of a choice must be distinct single tokens")
    root: dict[int, dict] = {}
    for ids in outputs:
        node = root
        for token in (*ids, chat.end_id):
            node = node.setdefault(token, {})
    return root
