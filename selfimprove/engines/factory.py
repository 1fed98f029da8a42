"""Creates the engine that a params section specifies, importing its package only then."""

from collections.abc import Callable
from pathlib import Path
from threading import Lock

from selfimprove.core.errors import UserError
from selfimprove.engines.base import Engine, Request
from selfimprove.engines.cluster.config import NO_CLUSTER, ClusterParams
from selfimprove.engines.config import POLICY, EngineConfig, OpenAiEngineConfig, ScriptedEngineConfig, VllmEngineConfig
from selfimprove.engines.lazy import LazyEngine
from selfimprove.engines.vllm.checks import check_installed, check_model, replica_count, visible_gpus
from selfimprove.models.merging import full_weights

_LOADING = Lock()
"""vLLM measures the GPU memory that it uses while loading, so engines that share GPUs load one after the other."""


def make_engine(
    cfg: EngineConfig,
    *,
    policy_dir: Path,
    threads: int,
    expert: Callable[[Request, int], str] | None,
    cluster: ClusterParams = NO_CLUSTER,
    sharing: int = 1,
) -> Engine:
    """The engine specified by ``cfg``.

    Args:
        policy_dir: the model folder for ``model: policy``.
        threads: CPU threads for engines that compute on this machine.
        expert: the environment's answers for ``engine: scripted``; None: the environment has no expert.
        cluster: where engines with weights run; ``sharing``: how many of them, including this one, share it.

    Raises:
        UserError: there is no model folder, no key, no expert, no package for the engine, or no cluster although the
            params specify one, or the params do not fit the model or the GPUs.
    """
    if isinstance(cfg, ScriptedEngineConfig):
        from selfimprove.engines.scripted import ScriptedEngine

        if expert is None:
            raise UserError("engine scripted: this environment has no expert; choose another engine as the teacher.")
        return ScriptedEngine(expert)
    if isinstance(cfg, OpenAiEngineConfig):
        from selfimprove.engines.openai import OpenAiEngine

        return OpenAiEngine(cfg)
    folder = policy_dir if cfg.model == POLICY else Path(cfg.model)
    if not (folder / "config.json").is_file():
        raise UserError(f"engine {cfg.engine}: {folder} contains no model (no config.json); fix the param model.")
    if isinstance(cfg, VllmEngineConfig):
        check_model(cfg, folder)
        if cluster.kind != "ray":
            return _lazy_vllm(cfg, folder, threads)
        from selfimprove.engines.cluster.ray_engines import ray_vllm

        full = full_weights(folder, trust_remote_code=cfg.trust_remote_code)
        return ray_vllm(cluster, cfg, full, threads=threads, sharing=sharing)
    folder = full_weights(folder, trust_remote_code=cfg.trust_remote_code)
    if cluster.kind == "ray":
        from selfimprove.engines.cluster.ray_engines import ray_transformers

        return ray_transformers(cluster, cfg, folder, threads=threads, sharing=sharing)
    if cfg.replicas > 1:
        from selfimprove.engines.cluster.replicas import replicated_transformers

        return replicated_transformers(cfg, folder, threads=threads)
    from selfimprove.engines.cpu.engine import TransformersEngine

    return TransformersEngine(cfg, folder, threads=threads)


def _lazy_vllm(cfg: VllmEngineConfig, folder: Path, threads: int) -> LazyEngine:
    """vLLM takes minutes to load: run all checks now, and load at the first request."""
    from selfimprove.core.chat import ChatFormat

    check_installed()
    chat = ChatFormat.load(folder, cfg.chat_template)
    gpus = visible_gpus()
    replicas = replica_count(cfg, len(gpus))

    def make() -> Engine:
        full = full_weights(folder, trust_remote_code=cfg.trust_remote_code)
        with _LOADING:
            if replicas > 1:
                from selfimprove.engines.cluster.replicas import replicated_vllm

                return replicated_vllm(cfg, full, replicas=replicas, gpus=gpus, threads=threads)
            from selfimprove.engines.vllm.engine import VllmEngine

            return VllmEngine(cfg, full)

    return LazyEngine(make, chat, cfg.context)
