"""A stage's work in counts: requests to engines, and tokens to train on. Each method's ``plan.py`` lists its
stages.

Counts are upper bounds. They follow from params wherever params decide; where data decides, one of the bounds below is
used, and the plan prints it. Requests that are repeated because an answer could not be used are not counted.
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
"""Longest prompt that an endpoint is taken to accept; its params name no context."""


@dataclass(frozen=True)
class Calls:
    """Requests of one kind to one engine.

    ``read``: tokens of all prompts, a prompt once for its samples; ``longest``: of one prompt; ``new``: of one
    completion; ``written``: of all completions; ``at_once``: requests under way."""

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
    """One training run. ``place``: its key in the params; ``tokens``: read in all passes; ``longest``: of one sequence;
    ``steps``: of the optimiser; ``scored``: tokens that the opponent reads beforehand, once."""

    place: str
    params: FinetuneParams | PairParams | RLParams
    tokens: int
    longest: int
    steps: int
    scored: int = 0

    @property
    def untrained(self) -> bool:
        """Whether the model is taken as it is."""
        return self.tokens == 0


@dataclass(frozen=True)
class Work:
    """A stage. ``together``: engines and training hold their memory at the same time; ``base``: it fetches or makes the
    model that the method starts from."""

    stage: str
    calls: tuple[Calls, ...] = ()
    training: Training | None = None
    together: bool = False
    base: bool = False


def room(engine: EngineConfig, new: int) -> int:
    """Longest prompt that leaves an engine's context room for ``new`` tokens."""
    context = REMOTE_CONTEXT
    if isinstance(engine, TransformersEngineConfig | VllmEngineConfig):
        context = engine.context
    return max(1, context - new)


def reply_tokens(engine: EngineConfig, asked: int) -> int:
    """Longest completion: what the stage asks for, or the endpoint's own limit."""
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
    """``requests`` of about ``prompt`` tokens each, cut to what the engine has room for."""
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
    and an ``answer``, until the engine's context is full; then the oldest turns are left out."""
    new = reply_tokens(engines[name], new)
    most = room(engines[name], new)
    prompts = [min(most, opening + turn * (new + answer)) for turn in range(turns)]
    requests = dialogues * turns
    written = requests * samples * new
    return Calls(name, requests, dialogues * sum(prompts), prompts[-1], new, written, min(at_once, dialogues), samples)


def supervised(place: str, params: FinetuneParams, items: int, *, budget: int | None = None) -> Training:
    """Training on ``items`` sequences of ``max_length`` tokens, or pairs of them.

    ``budget``: a control stops after the step that brings its tokens to so many.
    """
    paired = isinstance(params, PairParams)
    item = params.max_length * (2 if paired else 1)
    limit = budget if budget is not None else params.max_train_tokens
    if limit is None:
        tokens = round(params.epochs * items) * item
        steps = -(-round(params.epochs * items) // params.batch_size)
    else:
        tokens = limit + (params.batch_size - 1) * item if limit else 0
        steps = -(-tokens // item)  # of one short item each, at the worst
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
    """The stages of a method whose iterations go on from a base, in dvc.yaml's order.

    Args:
        demonstrated: items of the first SFT.
        iteration: an iteration's stages before its training, and the items of that; asked of parents first.
        evaluation: of each row.
        control: a control's items, of which it reads as many tokens as the iteration that it matches.
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
