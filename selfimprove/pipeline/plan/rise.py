"""Counts RISE's requests and training tokens for ``make plan``."""

from selfimprove.engines.config import ScriptedEngineConfig
from selfimprove.methods.rise.params import GenerateParams, RiseParams
from selfimprove.methods.rows import BASE
from selfimprove.pipeline.plan.work import Calls, Work, ask, iterated, reply_tokens

OPENING, FEEDBACK = 768, 384
NOTES = (
    f"Assumed lengths: a problem with the worked example at most {OPENING} tokens, feedback with the problem "
    f"{FEEDBACK}.",
    "Every attempt becomes an example of max_length tokens.",
)


def works(rise: RiseParams) -> list[Work]:
    """The stages that use a model or write an iteration's data, in dvc.yaml's order."""
    collected, singles = {BASE: 0}, {BASE: 0}

    def iteration(key: str) -> tuple[list[Work], int]:
        row = rise.iterations[key]
        own = _problems(row.generate) * row.generate.max_turns
        collected[key] = collected.get(row.init, 0) + own
        singles[key] = singles.get(row.init, 0) + _problems(row.generate)
        used = collected[key] if row.convert.accumulate else own
        data = (used + collected[key] + singles[key]) * rise.rows[key].train.max_length
        calls = _collection(rise, row.generate)
        return [Work(f"rise-generate@{key}", calls), Work(f"rise-convert@{key}", data=data)], used

    return iterated("rise", rise, rise.tasks.demonstrations, iteration, _evaluation(rise))


def _problems(cfg: GenerateParams) -> int:
    return min(cfg.tasks, cfg.limit or cfg.tasks)


def _collection(rise: RiseParams, cfg: GenerateParams) -> tuple[Calls, ...]:
    """At turn t, ``num_of_samples[t]`` samples from that turn's model for each problem."""
    calls, prompt = [], OPENING
    for model, samples in zip(cfg.models, cfg.num_of_samples, strict=True):
        engine = rise.engines[model]
        if not isinstance(engine, ScriptedEngineConfig):
            calls.append(
                ask(
                    rise.engines, model, _problems(cfg), prompt, cfg.max_tokens, at_once=cfg.concurrency,
                    samples=samples,
                )
            )  # fmt: skip
        prompt += reply_tokens(engine, cfg.max_tokens) + FEEDBACK
    return tuple(calls)


def _evaluation(rise: RiseParams) -> tuple[Calls, ...]:
    """Sequential turns; ``parallel_samples`` samples are drawn at the first."""
    cfg = rise.evaluate
    problems = getattr(rise.tasks, cfg.split)
    problems = min(problems, cfg.limit or problems)
    calls = []
    for turn in range(cfg.max_turns):
        seen = min(turn, cfg.context_window - 1)
        prompt = OPENING + seen * (reply_tokens(rise.engines["student"], cfg.max_tokens) + FEEDBACK)
        samples = cfg.parallel_samples if turn == 0 else 1
        calls.append(
            ask(rise.engines, "student", problems, prompt, cfg.max_tokens, at_once=cfg.concurrency, samples=samples)
        )
    return tuple(calls)
