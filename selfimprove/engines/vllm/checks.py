"""Detects settings that cannot work with vLLM, from params and config.json in milliseconds instead of a long load.

Nothing here imports vLLM; the numbers of GPUs are arguments, so that a plan can check another machine's.
"""

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from selfimprove.core.errors import UserError
from selfimprove.core.records import load_json
from selfimprove.engines.config import VllmEngineConfig

_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")
"""Keys of config.json that may contain the number of positions; vLLM takes the smallest
(vllm/transformers_utils/model_arch_config_convertor.py)."""

_SCALED_ALREADY = ("default", "su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling")
"""RoPE types whose configs already count the extended positions (vllm/config/model.py, _get_and_verify_max_len)."""

PASS_TOKENS = 8192
"""Most tokens of a pass. vLLM's own value depends on the caller and the GPU: for its engine, 2,048."""


def check_installed() -> None:
    """Raises:
    UserError: the package vllm is not installed in this environment.
    """
    if find_spec("vllm") is None:
        raise UserError(
            "engine vllm: the package vllm is not installed here; on a GPU machine run `make setup ACCELERATOR=cuda`, "
            "on a CPU `make env-vllm` and use .venvs/vllm/bin/python (docs/engines.md)."
        )


def check_model(cfg: VllmEngineConfig, folder: Path) -> None:
    """Check the params against the model's config.json.

    Raises:
        UserError: the file is missing or is not a JSON object, the context exceeds the model's positions, or
            ``tensor_parallel`` does not divide the attention heads.
    """
    config = load_json(folder / "config.json")
    if not isinstance(config, dict):
        raise UserError(f"{folder / 'config.json'} is not a JSON object; restore it from its source.")
    limit = positions(config)
    if limit is not None and cfg.context > limit:
        raise UserError(f"engine vllm: context {cfg.context} exceeds the {limit} positions of {folder}; lower context.")
    inner = _text_part(config)
    heads = inner.get("num_attention_heads", inner.get("n_head"))
    shared = inner.get("num_key_value_heads") or heads  # vLLM divides them, or replicates each on several GPUs
    width = cfg.tensor_parallel
    if isinstance(heads, int) and (heads % width or (shared % width and width % shared)):
        raise UserError(
            f"engine vllm: tensor_parallel {width} does not divide the {heads} attention heads ({shared} key/value "
            f"heads) of {folder}; set it to a divisor."
        )


def positions(config: Mapping[str, Any]) -> int | None:
    """The model's maximum number of positions, computed from config.json as vLLM does; None: unspecified."""
    inner = _text_part(config)
    found = [inner[key] for key in _POSITIONS if isinstance(inner.get(key), int)]
    if not found:
        return None
    rope = inner.get("rope_parameters") or inner.get("rope_scaling")
    if not isinstance(rope, Mapping):
        return min(found)
    scaled = rope.get("rope_type", rope.get("type", "default")) not in _SCALED_ALREADY
    factor = (rope.get("factor") or 1.0) if scaled and "gemma3" not in str(config.get("model_type")) else 1.0
    return int(min(found) * factor)


def _text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a config that describes the language model, in a model that also reads images for example."""
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) and inner else config


def pass_tokens(cfg: VllmEngineConfig) -> int:
    """Tokens of the largest pass on a GPU: at least one of every sequence, and not more than all sequences hold."""
    return min(max(PASS_TOKENS, cfg.context), cfg.max_sequences * cfg.context)


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, each as in CUDA_VISIBLE_DEVICES; does not initialise them."""
    import torch

    count = torch.cuda.device_count()
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    return [str(index) for index in range(count)] if named is None else named.split(",")[:count]


def replica_count(cfg: VllmEngineConfig, gpus: int) -> int:
    """Number of processes that ``cfg`` starts on a machine with ``gpus`` visible GPUs; 0: on the CPU.

    Raises:
        UserError: the GPUs cannot be divided in this way, or are too few.
    """
    if gpus and gpus % cfg.tensor_parallel:
        raise UserError(
            f"engine vllm: tensor_parallel {cfg.tensor_parallel} does not divide the number of visible GPUs, {gpus}; "
            "change it, or choose GPUs with CUDA_VISIBLE_DEVICES."
        )
    if cfg.replicas == "auto":
        count = max(1, gpus // cfg.tensor_parallel)
    else:
        count = cfg.replicas
    needed = count * cfg.tensor_parallel
    if needed > gpus and (gpus or cfg.tensor_parallel > 1):
        raise UserError(
            f"engine vllm: {count} replicas x tensor_parallel {cfg.tensor_parallel} need {needed} GPUs, but {gpus} are "
            "visible; lower replicas or tensor_parallel."
        )
    return count


def check_gpu_memory(configs: Mapping[str, VllmEngineConfig], gpus: int) -> None:
    """Check the memory of engines that are open together: they share the GPUs, from the first one on.

    Raises:
        UserError: their shares of a GPU's memory add up to more than 1.
    """
    for gpu in range(gpus):
        here = {name: cfg for name, cfg in configs.items() if gpu < replica_count(cfg, gpus) * cfg.tensor_parallel}
        total = sum(cfg.gpu_memory for cfg in here.values())
        if total > 1 + 1e-9:
            shares = " + ".join(f"{name} {cfg.gpu_memory:g}" for name, cfg in here.items())
            raise UserError(
                f"engine vllm: gpu_memory of the engines that share GPU {gpu} adds up to {total:g} ({shares}); lower "
                "them so that the sum is at most 1."
            )
