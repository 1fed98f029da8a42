"""Counts SPIN's requests and training tokens for ``make plan``."""

from dataclasses import replace

from selfimprove.methods.rows import BASE
from selfimprove.methods.spin.params import GenerateParams, PlayParams, SpinParams, SpinRow
from selfimprove.pipeline.plan.work import Calls, Work, grow, iterated, room

OPENING, WORKED, OBSERVATION = 512, 2048, 384
NOTES = (
    f"Assumed lengths: a question at most {OPENING} tokens, worked episodes before it {WORKED}, an observation "
    f"{OBSERVATION}; a prompt of plain SPIN may fill the engine's context.",
    "An episode ends when its context is full; every side of a pair is assumed to have max_length tokens.",
)


def works(spin: SpinParams) -> list[Work]:
    """The stages that use a model or write an iteration's data, in dvc.yaml's order."""
    own = {BASE: 0}

    def iteration(key: str) -> tuple[list[Work], int]:
        row = spin.iterations[key]
        own[key] = _questions(row.generate, spin.tasks.train)
        mix = row.convert.mix
        pairs = int(mix.own * own[key]) + int(mix.previous * own.get(row.init, 0))
        calls = _play(spin, row.generate, own[key], row.generate.runs)
        # The iteration's own pairs, and at most as many of rewarded and unrewarded runs, have files of their own.
        data = (pairs + 2 * own[key]) * 2 * spin.rows[key].train.max_length
        return [Work(f"spin-generate@{key}", calls), Work(f"spin-convert@{key}", data=data)], pairs

    def control(row: SpinRow) -> int:
        return spin.tasks.train if row.data == "examples" else own[row.source]

    return iterated("spin", spin, spin.tasks.train, iteration, _evaluation(spin), control)


def _questions(cfg: PlayParams, count: int) -> int:
    return max(0, (count if cfg.end is None else min(cfg.end, count)) - cfg.start)


def _evaluation(spin: SpinParams) -> tuple[Calls, ...]:
    return _play(spin, spin.evaluate, _questions(spin.evaluate, getattr(spin.tasks, spin.evaluate.split)))


def _play(spin: SpinParams, cfg: PlayParams | GenerateParams, questions: int, runs: int = 1) -> tuple[Calls, ...]:
    """``max_turns`` requests per episode, all rounds of which fit into the engine's context."""
    plain = spin.prompt.format == "reply"
    full = room(spin.engines["policy"], cfg.max_tokens)
    opening = full if plain else OPENING + (0 if spin.prompt.few_shot == "off" else WORKED)
    rounds = 1 if plain else cfg.max_turns
    episodes = questions * runs
    calls = grow(
        spin.engines, "policy", episodes, rounds, opening, OBSERVATION, cfg.max_tokens, at_once=cfg.concurrency
    )
    return (replace(calls, written=min(calls.written, episodes * (full + cfg.max_tokens))),)
