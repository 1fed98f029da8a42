"""Self-play episodes with a tool: hundreds of concurrent questions, compared with one at a time and the bare engine.

All use one model, warm-started on the expert's trajectories, so that rounds and episodes have realistic lengths:

- ``play``: SPIN's episodes as in the generate stage, all concurrent, with BM25 search between the rounds;
- ``one at a time``: the same questions one after another; the engine has one slot;
- ``library one at a time``: the same with ``model.generate``, as in the original's loop;
- ``engine``: every request of ``play``, known beforehand and submitted at once.

``BENCH=questions make bench`` prints a table, and JSON on its last line.
"""

import asyncio
from collections.abc import Coroutine, Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from bench.library import LibraryEngine
from bench.rates import Run, answer_all, keep_best, print_rates, timed
from bench.warm import engine_of, warm_started
from selfimprove.core.records import write_jsonl
from selfimprove.engines.episodes import play_all
from selfimprove.envs.qa.base import Question
from selfimprove.methods.spin.params import GenerateParams, TasksParams, ToolsParams
from selfimprove.methods.spin.play import play
from selfimprove.methods.spin.tasks import examples, gather, open_tools, texts
from selfimprove.models.tokenizer import TokenizerParams
from tests.support.recorded import Recorded

CONTEXT = 512
CFG = GenerateParams(max_turns=6, max_tokens=48)
FORM: Final = "alpaca"


def measure(
    *,
    questions: int = 750,
    experts: int = 1500,
    single_questions: int = 8,
    slots: int = 128,
    rounds: int = 4,
    threads: int = 2,
    epochs: float = 3,
) -> dict[str, Any]:
    """Questions and tokens per second of each variant, and the ratios between them.

    Args:
        questions: number of concurrent questions.
        experts: trajectories in the warm start.
        single_questions: number of questions played one after another.
        slots: slots of the engine, over all its replicas (one per thread).
        rounds: number of timings per variant; the fastest counts, since other work on the machine only slows it down.
        threads: CPU threads of each variant.
        epochs: epochs of the warm start.

    Returns:
        ``questions_per_second``, ``tokens_per_second`` (drawn) by variant; ``over_one_at_a_time`` and
        ``over_library_one_at_a_time`` (tokens), ``of_engine`` (tokens); ``occupancy`` of the slots; ``finished``: share
        of the episodes; ``valid``: the occupancy does not exceed 1.0, since a measurement above the limit is wrong.
    """
    import torch

    torch.set_num_threads(threads)
    tools_cfg = ToolsParams()
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        material = gather(
            TasksParams(train=experts, dev=1, test=questions), tools_cfg, seed=0, download=folder, mirror=None
        )
        demonstrations = examples(material.experts, FORM)
        model = warm_started(
            folder, texts(demonstrations, FORM), TokenizerParams(vocab_size=1024, phrases=True, template="react"),
            {"model": demonstrations}, length=CONTEXT, positions=CONTEXT, epochs=epochs, threads=threads,
        )["model"]  # fmt: skip
        corpus = folder / "corpus.jsonl"
        write_jsonl(corpus, material.paragraphs)
        tools = open_tools(tools_cfg, FORM, folder, corpus)
        split = material.splits["test"]
        library = LibraryEngine(model, CONTEXT)
        make = partial(engine_of, model, context=CONTEXT, threads=threads, prefill_block=32)
        many, single = Recorded(make(slots=slots, replicas=threads)), make(slots=1)
        best: dict[str, Run] = {}
        finished = 0.0
        for _ in range(rounds):
            many.asked.clear()
            episodes, run = timed(many, _play(split, tools, many))
            finished = sum(episode.finished for episode in episodes) / len(episodes)
            keep_best(best, "play", run)
            for name, one in (("one at a time", single), ("library one at a time", library)):
                alone = _play(split[:single_questions], tools, one, at_once=1)
                keep_best(best, name, timed(one, alone)[1])
            keep_best(best, "engine", timed(many.inner, answer_all(many.inner, many.asked))[1])
        tools.close()
        for engine in (many, single):
            asyncio.run(engine.close())
    counts = {"play": questions, "one at a time": single_questions, "library one at a time": single_questions}
    tokens = {name: run.tokens / run.seconds for name, run in best.items()}
    occupancy = best["play"].occupancy
    return {
        "threads": threads,
        "questions": questions,
        "slots": slots,
        "questions_per_second": {name: round(count / best[name].seconds, 2) for name, count in counts.items()},
        "tokens_per_second": {name: round(rate, 1) for name, rate in tokens.items()},
        "over_one_at_a_time": round(tokens["play"] / tokens["one at a time"], 2),
        "over_library_one_at_a_time": round(tokens["play"] / tokens["library one at a time"], 2),
        "of_engine": round(tokens["play"] / tokens["engine"], 4),
        "occupancy": round(occupancy, 4),
        "finished": round(finished, 4),
        "valid": occupancy <= 1.0,
    }


def _play(split: Sequence[Question], tools: Any, engine: Any, at_once: int | None = None) -> Coroutine[Any, Any, Any]:
    games = list(enumerate(split))
    one = lambda game: play(game[1], game[0], tools, engine, CFG, 0, form=FORM)  # noqa: E731
    return play_all(games, one, concurrency=at_once or len(games))


def show(result: dict[str, Any]) -> None:
    """Print the table and ratios for a result of ``measure``."""
    title = f"SPIN's questions, {result['threads']} thread(s), {result['questions']} at once"
    print_rates(title, "questions", result["questions_per_second"], result["tokens_per_second"])
    print(
        f"{result['over_one_at_a_time']} times one question at a time, {result['over_library_one_at_a_time']} times "
        f"with the library; {result['of_engine']:.2f} of the engine's tokens/s; slots {result['occupancy']:.0%} busy; "
        f"{result['finished']:.0%} of the episodes finish"
    )
