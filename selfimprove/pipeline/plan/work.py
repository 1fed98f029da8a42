"""The work of a stage in counts: requests to engines and training tokens. Each method's module lists its stages.

Counts are upper bounds. They follow from the params if these determine them; if the data do, an assumed bound is used,
which the plan prints. Requests repeated because of an unusable answer are not counted.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from selfimprove.engines.config import EngineConfig, OpenAiEngineConfig, TransformersEngineConfig, VllmEngineConfig
from selfimprove.methods.reflect_rl.rl_config import RLParams
from selfimprove.methods.rows import BASE, Iterated
from selfimprove.methods.spin.pair_config import PairParams
from selfimprove.training.config import FinetuneParams

REMOTE_CONTEXT = 8192
"""Assumed context of an endpoint in tokens; its params specify none."""


@dataclass(frozen=True)
class Calls:
    """Requests of one kind to one engine.

    Tokens: ``read``: of all prompts, each counted once for all of its samples; ``longest``: of the longest prompt;
    ``new``: of one completion; ``written``: of all completions. ``at_once``: number of concurrent requests."""

    engine: str
    requests: int
    read: int
    longest: int
    new: int
    written: int
    at_once: int
    samples: int = 1


@dataclass(frozen=True)
class Training:
    """One training run. ``place``: its key in the params; ``tokens``: total over all passes; ``longest``: tokens of the
    longest sequence; ``steps``: optimiser steps; ``scored``: tokens that the opponent reads once beforehand."""

    place: str
    params: FinetuneParams | PairParams | RLParams
    tokens: int
    longest: int
    steps: int
    scored: int = 0

    @property
    def untrained(self) -> bool:
        """Whether the model is used unchanged."""
        return self.tokens == 0


@dataclass(frozen=True)
class Work:
    """A stage. ``together``: engines and training occupy memory simultaneously; ``base``: the stage downloads or builds
    the model that the method starts from; ``data``: tokens of the training data that the stage writes."""

    stage: str
    calls: tuple[Calls, ...] = ()
    training: Training | None = None
    together: bool = False
    base: bool = False
    data: int = 0


def room(engine: EngineConfig, new: int) -> int:
    """Longest prompt, in tokens, that leaves room for ``new`` tokens in an engine's context."""
    context = REMOTE_CONTEXT
    if isinstance(engine, TransformersEngineConfig | VllmEngineConfig):
        context = engine.context
    return max(1, context - new)


def reply_tokens(engine: EngineConfig, asked: int) -> int:
    """Longest completion in tokens: the stage's limit or, if set, the endpoint's own."""
    return (engine.max_tokens or asked) if isinstance(engine, OpenAiEngineConfig) else asked


def ask(
    engines: Mapping[str, EngineConfig],
    name: str,
    requests: int,
    prompt: int,
    new: int,
    *,
    at_once: int,
    samples: int = 1,
) -> Calls:
    """``requests`` of ``prompt`` tokens each, limited by the engine's context."""
    return grow(engines, name, requests, 1, prompt, 0, new, at_once=at_once, samples=samples)


def grow(
    engines: Mapping[str, EngineConfig],
    name: str,
    dialogues: int,
    turns: int,
    opening: int,
    answer: int,
    new: int,
    *,
    at_once: int,
    samples: int = 1,
) -> Calls:
    """``dialogues`` of ``turns`` requests each: a prompt starts with ``opening`` tokens and each turn adds a completion
    and an ``answer``. Once the engine's context is full, the oldest turns are dropped."""
    new = reply_tokens(engines[name], new)
    most = room(engines[name], new)
    prompts = [min(most, opening + turn * (new + answer)) for turn in range(turns)]
    requests = dialogues * turns
    written = requests * samples * new
    return Calls(name, requests, dialogues * sum(prompts), prompts[-1], new, written, min(at_once, dialogues), samples)


def supervised(place: str, params: FinetuneParams, items: int, *, budget: int | None = None) -> Training:
    """Training on ``items`` sequences of ``max_length`` tokens, or pairs of such sequences.

    ``budget``: a control stops after the step that reaches this number of tokens.
    """
    paired = isinstance(params, PairParams)
    item = params.max_length * (2 if paired else 1)
    limit = budget if budget is not None else params.max_train_tokens
    if limit is None:
        tokens = round(params.epochs * items) * item
        steps = -(-round(params.epochs * items) // params.batch_size)
    else:
        tokens = limit + (params.batch_size - 1) * item if limit else 0
        steps = -(-tokens // item)  # worst case: one item per step
    scored = items * item if paired and tokens else 0
    return Training(place, params, tokens, params.max_length, steps, scored)


def iterated(
    method: str,
    params: Iterated,
    demonstrated: int,
    iteration: Callable[[str], tuple[list[Work], int]],
    evaluation: tuple[Calls, ...],
    control: Callable[[Any], int] = lambda _: 0,
) -> list[Work]:
    """The stages of a method whose iterations start from a base, in dvc.yaml's order.

    Args:
        demonstrated: number of items of the first SFT.
        iteration: returns an iteration's stages before its training and its number of training items; called for
            parents first.
        evaluation: requests of each row's evaluation.
        control: returns a control's number of items, from which it reads the tokens of the iteration that it matches.
    """

    def row(key: str, items: int, budget: int | None = None) -> tuple[list[Work], int]:
        training = supervised(f"{method}.rows.{key}.train", params.rows[key].train, items, budget=budget)
        stages = [Work(f"{method}-finetune@{key}", training=training), Work(f"{method}-evaluate@{key}", evaluation)]
        return stages, training.tokens

    found = [Work(f"base@{method}", base=True), *row(BASE, demonstrated)[0]]
    tokens = {BASE: 0}
    for key in sorted(params.iterations, key=lambda key: len(params.lineage(key))):  # a parent before its children
        before, items = iteration(key)
        stages, read = row(key, items)
        tokens[key] = tokens[params.rows[key].init] + read
        found += [*before, *stages]
    for key, one in params.controls.items():
        found += row(key, control(one), tokens[one.match])[0]
    return found
