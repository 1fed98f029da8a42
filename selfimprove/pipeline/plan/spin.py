"""Counts of SPIN's requests and training tokens, for ``make plan``."""

from __future__ import annotations

from dataclasses import replace

from selfimprove.methods.spin.params import GenerateParams, PlayParams, SpinParams
from selfimprove.pipeline.plan.work import Calls, Work, grow, room, supervised

OPENING, WORKED, OBSERVATION = 512, 2048, 384
NOTES = (
    f"A question is taken to have {OPENING} tokens at most, worked episodes before it {WORKED}, an observation "
    f"{OBSERVATION}; a prompt of plain SPIN may fill the engine's context.",
    "An episode ends where the context does; every side of a pair has max_length tokens.",
)


def works(spin: SpinParams) -> list[Work]:
    """The stages that use a model, in dvc.yaml's order."""
    base = spin.rows["base"]
    found = [
        Work("base@spin", base=True),
        Work("spin-finetune@base", training=supervised("spin.rows.base.train", base.train, spin.tasks.train)),
        Work("spin-evaluate@base", _evaluation(spin)),
    ]
    own, tokens = {"base": 0}, {"base": 0}
    for key in sorted(spin.iterations, key=lambda key: len(spin.lineage(key))):  # a parent before its children
        row = spin.iterations[key]
        own[key] = _questions(row.generate, spin.tasks.train)
        mix = row.convert.mix
        pairs = int(mix.own * own[key]) + int(mix.previous * own.get(row.init, 0))
        training = supervised(f"spin.rows.{key}.train", spin.rows[key].train, pairs)
        tokens[key] = tokens[spin.rows[key].init] + training.tokens
        found += [
            Work(f"spin-generate@{key}", _play(spin, row.generate, own[key], row.generate.runs)),
            Work(f"spin-finetune@{key}", training=training),
            Work(f"spin-evaluate@{key}", _evaluation(spin)),
        ]
    for key, control in spin.controls.items():
        items = spin.tasks.train if control.data == "examples" else own[control.source]
        training = supervised(f"spin.rows.{key}.train", control.train, items, budget=tokens[control.match])
        found += [
            Work(f"spin-finetune@{key}", training=training),
            Work(f"spin-evaluate@{key}", _evaluation(spin)),
        ]
    return found


def _questions(cfg: PlayParams, count: int) -> int:
    return max(0, (count if cfg.end is None else min(cfg.end, count)) - cfg.start)


def _evaluation(spin: SpinParams) -> tuple[Calls, ...]:
    return _play(spin, spin.evaluate, _questions(spin.evaluate, getattr(spin.tasks, spin.evaluate.split)))


def _play(spin: SpinParams, cfg: PlayParams | GenerateParams, questions: int, runs: int = 1) -> tuple[Calls, ...]:
    """``max_turns`` requests an episode; all rounds of one lie in the engine's context."""
    plain = spin.prompt.format == "reply"
    full = room(spin.engines["policy"], cfg.max_tokens)
    opening = full if plain else OPENING + (0 if spin.prompt.few_shot == "off" else WORKED)
    rounds = 1 if plain else cfg.max_turns
    episodes = questions * runs
    calls = grow(
        spin.engines, "policy", episodes, rounds, opening, OBSERVATION, cfg.max_tokens, at_once=cfg.concurrency
    )
    return (replace(calls, written=min(calls.written, episodes * (full + cfg.max_tokens))),)
