"""The engines that run on a Ray cluster: what a replica of each is, and what it needs of a node."""

from pathlib import Path

from selfimprove.core.chat import ChatFormat
from selfimprove.engines.cluster.config import ClusterParams
from selfimprove.engines.cluster.ray_cluster import connect, living_nodes
from selfimprove.engines.cluster.ray_replicas import Need, RayEngine
from selfimprove.engines.cluster.replicas import transformers_replica, vllm_replica, vllm_share
from selfimprove.engines.config import TransformersEngineConfig, VllmEngineConfig


def ray_transformers(
    cluster: ClusterParams, cfg: TransformersEngineConfig, model_dir: Path, *, threads: int, sharing: int
) -> RayEngine:
    """The default engine on a cluster; each replica has the slots and threads of one of ``cfg.replicas`` replicas."""
    spec, share = transformers_replica(cfg, model_dir.absolute(), threads=threads)
    need = Need(spec.cpus, int(cfg.device == "cuda"), sharing)
    chat = ChatFormat.load(model_dir, cfg.chat_template)
    return RayEngine(cluster, spec, share, chat, need, name="transformers", remedy="slots")


def ray_vllm(
    cluster: ClusterParams, cfg: VllmEngineConfig, model_dir: Path, *, threads: int, sharing: int
) -> RayEngine:
    """vLLM on a cluster: a replica has ``tensor_parallel`` GPUs of one node, or CPU threads if no node has a GPU.

    Raises:
        UserError: as ``RayEngine``.
    """
    has_gpus = cfg.tensor_parallel > 1 or any(node.gpus for node in living_nodes(connect(cluster)))
    cpus = 1 if has_gpus else max(1, threads // (1 if cfg.replicas == "auto" else cfg.replicas))
    return RayEngine(
        cluster,
        vllm_replica(cfg, model_dir.absolute(), cpus=cpus),
        vllm_share(cfg),
        ChatFormat.load(model_dir, cfg.chat_template),
        Need(cpus, cfg.tensor_parallel if has_gpus else 0, sharing),
        name="vllm",
        remedy="max_sequences or gpu_memory",
    )
