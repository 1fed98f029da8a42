"""Tree search throughput: hundreds of concurrent trees, compared with the original's order of work and the bare engine.

All variants use the same engine and the same model, warm-started on the expert's TextCraft episodes so that replies and
trees have realistic lengths:

- ``search``: our search over snapshots, all trees concurrent, the samples of a node as one request;
- ``original``: one tree after another, one sample after another, the environment rebuilt for every sample by a reset
  and a replay of the node's actions, as in the released code; the engine has one slot, so that no unused rows are
  computed;
- ``engine``: every request of the search, known beforehand and submitted at once.

``BENCH=search make bench`` prints a table, and JSON on its last line.
"""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.rates import Run, answer_all, keep_best, print_rates, timed
from bench.warm import engine_of, warm_started
from selfimprove.core.seeds import rng
from selfimprove.engines.episodes import play_all
from selfimprove.envs.interface import AgentEnv, EmbeddedWorld, World
from selfimprove.envs.registry import text_env
from selfimprove.methods.agent_r.params import SearchParams
from selfimprove.methods.agent_r.search import search
from selfimprove.methods.agent_r.tasks import demonstrate, texts
from selfimprove.methods.agent_r.tree import Tree
from selfimprove.models.tokenizer import TokenizerParams
from tests.support.original_search import OneByOne, Rebuilt
from tests.support.recorded import Recorded

CONTEXT = 448
CFG = SearchParams(tasks=1, max_depth=10, dives=2, n_gen=4, max_tokens=32)
DEMONSTRATIONS, EPOCHS = 120, 12
"""Of the warm start: number of the expert's episodes, and epochs."""
TREES, ORIGINAL_TREES = 200, 2
"""Number of concurrent trees in our search; number of trees that the original's order of work builds sequentially."""
SLOTS = 128
ROUNDS = 2


def measure(*, threads: int) -> dict[str, Any]:
    """Nodes and tokens per second of each variant in its best round, and the ratios between them.

    Returns:
        ``nodes_per_second``, ``tokens_per_second`` by variant; ``over_original`` (nodes), ``of_engine`` (tokens);
        ``reused_prefix``: the share of the search's prompt tokens whose keys and values were copied; ``occupancy``;
        ``solved``: share of the trees; ``valid``: no share exceeds 1.0, since a measurement above the limit is wrong.
    """
    import torch

    torch.set_num_threads(threads)
    env = text_env().make()
    with TemporaryDirectory() as scratch:
        examples = [demonstrate(env, task) for task in _tasks(env)[:DEMONSTRATIONS]]
        folder = warm_started(
            Path(scratch), texts(examples), TokenizerParams(vocab_size=704), {"model": examples},
            length=CONTEXT, positions=1024, epochs=EPOCHS, threads=threads, row_tokens=512,
        )["model"]  # fmt: skip
        many = Recorded(engine_of(folder, slots=SLOTS, context=CONTEXT, threads=threads))
        single = engine_of(folder, slots=1, context=CONTEXT, threads=threads)
        tasks = _tasks(env)[DEMONSTRATIONS : DEMONSTRATIONS + TREES]
        snapshots, rebuilt = EmbeddedWorld(env), Rebuilt(env)
        best: dict[str, Run] = {}
        grown, few = list[Tree](), list[Tree]()
        for _ in range(ROUNDS):
            many.asked.clear()
            grown, run = _grow(many, snapshots, tasks, at_once=len(tasks))
            keep_best(best, "search", run)
            few, run = _grow(OneByOne(single), rebuilt, tasks[:ORIGINAL_TREES], at_once=1)
            keep_best(best, "original", run)
            keep_best(best, "engine", timed(many.inner, answer_all(many.inner, many.asked))[1])
    counts = {"search": _nodes(grown), "original": _nodes(few)}
    nodes = {name: count / best[name].seconds for name, count in counts.items()}
    tokens = {name: run.tokens / run.seconds for name, run in best.items()}
    reused, occupancy = best["search"].reused, best["search"].occupancy
    return {
        "threads": threads,
        "trees": len(tasks),
        "nodes": counts["search"],
        "slots": SLOTS,
        "nodes_per_second": {name: round(rate, 1) for name, rate in nodes.items()},
        "tokens_per_second": {name: round(rate, 1) for name, rate in tokens.items()},
        "over_original": round(nodes["search"] / nodes["original"], 2),
        "of_engine": round(tokens["search"] / tokens["engine"], 4),
        "reused_prefix": round(reused, 4),
        "occupancy": round(occupancy, 4),
        "solved": round(sum(tree.status == "solved" for tree in grown) / len(grown), 4),
        "valid": max(reused, occupancy) <= 1.0,
    }


def _grow(engine: Any, world: World, tasks: Sequence[int], *, at_once: int) -> tuple[list[Tree], Run]:
    grow = play_all(tasks, lambda task: search(task, world, engine, CFG, 0), concurrency=at_once)
    trees, run = timed(engine, grow)
    return trees, run


def _nodes(trees: Sequence[Tree]) -> int:
    """Number of expanded nodes, i.e. without the roots, which cost nothing."""
    return sum(len(tree.nodes) - 1 for tree in trees)


def _tasks(env: AgentEnv) -> list[int]:
    tasks = list(env.task_ids())
    rng("bench", "search").shuffle(tasks)
    return tasks


def show(result: dict[str, Any]) -> None:
    """Print the table and ratios for a result of ``measure``."""
    title = f"Search, {result['threads']} thread(s), {result['trees']} trees, {result['nodes']} nodes"
    print_rates(title, "nodes", result["nodes_per_second"], result["tokens_per_second"])
    print(
        f"{result['over_original']} times the original's nodes/s; {result['of_engine']:.2f} of the engine's tokens/s; "
        f"{result['reused_prefix']:.0%} of the prompt tokens reused"
    )
