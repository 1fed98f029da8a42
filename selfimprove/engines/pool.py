"""The engines of a stage: created by name, journaled, closed together."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from selfimprove.core.journal import Journal
from selfimprove.core.sums import float_sum
from selfimprove.engines.base import Engine, EngineStats, Request
from selfimprove.engines.cluster.config import NO_CLUSTER, ClusterParams
from selfimprove.engines.config import EngineConfig, ScriptedEngineConfig, TransformersEngineConfig, VllmEngineConfig
from selfimprove.engines.factory import make_engine
from selfimprove.engines.journal import JournaledEngine
from selfimprove.engines.vllm.checks import check_gpu_memory, visible_gpus

ExpertMaker = Callable[[ScriptedEngineConfig], Callable[[Request, int], str]]
"""Returns the environment's expert with the error rate of the config."""


@asynccontextmanager
async def open_engines(
    configs: Mapping[str, EngineConfig],
    policies: Mapping[str, Path],
    *,
    threads: int,
    journal: Journal,
    expert: ExpertMaker | None = None,
    cluster: ClusterParams = NO_CLUSTER,
) -> AsyncIterator[dict[str, Engine]]:
    """The engines listed in ``policies``, which maps a name to the model folder for ``model: policy``.

    A scripted engine is not journaled, because repeating its answers costs nothing.

    Raises:
        UserError: as ``make_engine``, or vLLM engines that share GPUs need more than their memory.
    """
    engines: dict[str, Engine] = {}
    vllm = {name: cfg for name in sorted(policies) if isinstance(cfg := configs[name], VllmEngineConfig)}
    if len(vllm) > 1:
        if cluster.kind != "ray":
            check_gpu_memory(vllm, len(visible_gpus()))
        elif all(cfg.tensor_parallel == 1 for cfg in vllm.values()):  # a replica of each on every GPU
            check_gpu_memory({name: cfg.model_copy(update={"replicas": 1}) for name, cfg in vllm.items()}, 1)
    sharing = sum(isinstance(configs[name], TransformersEngineConfig | VllmEngineConfig) for name in policies)
    try:
        for name, policy_dir in sorted(policies.items()):
            config = configs[name]
            answer = expert(config) if expert and isinstance(config, ScriptedEngineConfig) else None
            engine = make_engine(
                config, policy_dir=policy_dir, threads=threads, expert=answer, cluster=cluster, sharing=sharing
            )
            engines[name] = engine if config.engine == "scripted" else JournaledEngine(engine, journal, name)
        yield engines
    finally:
        for engine in engines.values():
            await engine.close()


def usage(engines: Mapping[str, Engine]) -> dict[str, float]:
    """Throughput and occupancy for the timing file; they differ between runs."""
    out: dict[str, float] = {"work_seconds": float_sum(engine.stats.seconds for engine in engines.values())}
    for name, engine in engines.items():
        stats: EngineStats = engine.stats
        out |= {
            f"{name}_generated_tokens": stats.generated_tokens,
            f"{name}_prompt_tokens": stats.prompt_tokens,
            f"{name}_cached_prompt_tokens": stats.cached_prompt_tokens,
            f"{name}_occupancy": stats.busy_slot_steps / stats.slot_steps if stats.slot_steps else 0.0,
            f"{name}_retries": stats.retries,
            f"{name}_failures": stats.failures,
        }
    return out
