"""Evaluation of a pretrained base on held-out pages: loss by world, and accuracy of answers.

An answer must match word for word; for solving a task, only the last line must match: the result, or the action. Each
question is asked separately, after the statements of its page but without earlier questions and answers.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel

from selfimprove.apps.pretraining.corpus import WORLDS, Text, Writer, page_of
from selfimprove.core.records import Message
from selfimprove.core.seeds import SeedKey
from selfimprove.engines.base import Completion, Engine, Request
from selfimprove.engines.config import TransformersEngineConfig
from selfimprove.engines.factory import make_engine
from selfimprove.training.encode import EncodedExample

CONTEXT, MAX_TOKENS = 640, 96


class Right(BaseModel):
    """Number of questions asked, and number answered correctly."""

    asked: int
    right: int


class Measured(BaseModel):
    """By world: the mean loss per answer token, in nats; by world and ability: accuracy."""

    answer_loss: dict[str, float]
    answers: dict[str, Right]
    wrong: list[tuple[str, str, str]]
    """one wrong answer of each kind: question, answer, expected answer"""


def measure(text: Text, model: Path, seed: int, *, threads: int) -> Measured:
    """Evaluate a model folder on ``text.held_out`` sequences of each world that are not in the training text."""
    writer = Writer(text, model)
    losses = {}
    for world in WORLDS:
        made = [writer.sequence(world, seed, "held out", number) for number in range(text.held_out)]
        losses[world] = _loss(model, [one for one in made if one is not None])
    cfg = TransformersEngineConfig(engine="transformers", context=CONTEXT, slots=32, prefill_rows=8)
    engine = make_engine(cfg, policy_dir=model, threads=threads, expert=None)
    answers, wrong = asyncio.run(_ask(engine, text.held_out, seed))
    return Measured(answer_loss=losses, answers=answers, wrong=wrong)


def _loss(model: Path, sequences: Sequence[EncodedExample]) -> float:
    import torch

    from selfimprove.models.loading import load_causal_lm

    network = load_causal_lm(model)
    total, tokens = 0.0, 0
    with torch.no_grad():
        for one in sequences:
            ids = torch.tensor([one.ids])
            learnt = torch.tensor(one.token_weights[1:]) == 1.0
            logits = network(input_ids=ids).logits[0, :-1][learnt]
            total += float(torch.nn.functional.cross_entropy(logits, ids[0, 1:][learnt], reduction="sum"))
            tokens += int(learnt.sum())
    return total / tokens


async def _ask(engine: Engine, pages: int, seed: int) -> tuple[dict[str, Right], list[tuple[str, str, str]]]:
    asked: list[tuple[str, str, str]] = []
    requests: list[Request] = []
    for world in WORLDS:
        for number in range(pages):
            said: list[str] = []
            for turn, passage in enumerate(page_of(world, seed, "held out", number, 0)):
                said.append(passage.text)
                if not passage.answer:
                    continue
                messages = [Message(role="user", content="\n".join(said))]
                if passage.ability != "reading" and engine.fits(messages, MAX_TOKENS):
                    asked.append((f"{world}: {passage.ability}", passage.text, passage.answer))
                    key = SeedKey(seed, f"{world}-{number}", turn)
                    requests.append(Request(messages=messages, seed=key, temperature=0.0, max_tokens=MAX_TOKENS))
                said.pop()
    replies: list[list[Completion]] = await asyncio.gather(*(engine.generate(request) for request in requests))
    answers: dict[str, Right] = {}
    wrong: dict[str, tuple[str, str, str]] = {}
    for (kind, question, answer), (reply,) in zip(asked, replies, strict=True):
        before = answers.get(kind, Right(asked=0, right=0))
        right = _judged(reply.text, kind) == _judged(answer, kind)
        answers[kind] = Right(asked=before.asked + 1, right=before.right + right)
        if not right:
            wrong.setdefault(kind, (question, reply.text, answer))
    return answers, list(wrong.values())


def _judged(text: str, kind: str) -> str:
    """The part of an answer that must match: the last line for solving, whose wording is free; otherwise all."""
    return text.rpartition("\n")[2] if kind.endswith(": solving") else text
