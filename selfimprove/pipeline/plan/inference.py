"""Memory and time of the engines: vLLM (``engines/vllm/engine.py``) and transformers (``engines/cpu/slots.py``)."""

from dataclasses import dataclass, replace

from selfimprove.core.errors import UserError
from selfimprove.engines.config import TransformersEngineConfig, VllmEngineConfig
from selfimprove.engines.cpu.batching import batch_sizes
from selfimprove.engines.vllm.checks import pass_tokens, replica_count
from selfimprove.pipeline.plan import formulas as f
from selfimprove.pipeline.plan.hardware import Hardware
from selfimprove.pipeline.plan.shapes import usable_positions
from selfimprove.pipeline.plan.work import Calls

COMPUTE, TRAFFIC = 0.40, 0.60
"""Assumed utilisation of a GPU's peak operations and memory bandwidth in generation."""

VLLM_STEP, GRAPH_LAYER = 4e-3, 5e-5
"""Minimum seconds of a decoding step: vLLM's scheduling and sampling per step (assumed); for the transformers engine,
per layer, with its CUDA graphs (measured with 30 layers on a rented H100: 1.3 ms)."""

PROCESS_GPU, PROCESS_HOST, PROCESS_CPU = 1.5e9, 4e9, 1e9
"""Bytes of a process besides its tensors: on a GPU, the CUDA context, library workspaces and fragmentation; in host
memory, the libraries with and without CUDA."""

KEPT_BLOCKS = 256 * 2**20
"""Minimum bytes of prompt blocks that the transformers engine may cache; otherwise the size of its slots. Copied from
``engines/cpu/prefill.py``, whose import would load torch."""


@dataclass(frozen=True, kw_only=True)
class LoadedEngine:
    """An engine with its model. Bytes are per GPU (``gpus`` 0: it runs on the CPU); ``host``: bytes of host memory;
    ``room``: capacity of all replicas' KV cache in sequences (transformers) or tokens (vLLM)."""

    cfg: TransformersEngineConfig | VllmEngineConfig
    gpus: int
    replicas: int
    weights: float = 0.0
    activations: float = 0.0
    kv: float = 0.0
    other: float = 0.0
    host: float
    room: float
    remedy: str
    problems: tuple[str, ...]


def loaded_engine(
    place: str,
    cfg: TransformersEngineConfig | VllmEngineConfig,
    shape: f.Shape,
    machine: Hardware,
    held_dtype: str | None = None,
    longest: int = 0,
) -> LoadedEngine:
    """An engine with a model of ``shape``. ``held_dtype``: the engine shares a trainer's weights, and this is the
    precision of its keys and values (``engines/cpu/slots.py``); ``longest``: tokens of the longest training example."""
    problems = _context_problems(place, cfg, usable_positions(cfg, shape.positions, longest))
    if isinstance(cfg, TransformersEngineConfig):
        return _transformers(place, cfg, shape, problems, held_dtype)
    return _vllm(place, cfg, shape, machine, problems)


def _context_problems(place: str, cfg: TransformersEngineConfig | VllmEngineConfig, positions: int) -> list[str]:
    if cfg.context > positions:
        return [f"{place}.context is {cfg.context}, but the model has only {positions} positions; lower it."]
    return []


def _transformers(
    place: str, cfg: TransformersEngineConfig, shape: f.Shape, problems: list[str], held_dtype: str | None
) -> LoadedEngine:
    """The KV cache consists of rows of ``context`` tokens for slots and prefill, and of the prefix cache."""
    token = f.kv_bytes(shape, held_dtype or cfg.dtype)
    rows, prefill_rows = batch_sizes(cfg, shape.parameters)
    slots = rows * cfg.context * token
    reading = cfg.replicas * prefill_rows * -(-cfg.context // cfg.prefill_block) * cfg.prefill_block * token
    kv = slots + reading + cfg.replicas * max(slots / cfg.replicas, KEPT_BLOCKS)
    weights = 0.0 if held_dtype else cfg.replicas * f.frozen_bytes(shape, cfg.dtype)
    tokens = prefill_rows * cfg.prefill_block
    activations = f.inference_activations(shape, tokens, logits=rows, bytes_each=f.BYTES[cfg.dtype])
    remedy = f"lower {place}.slots or {place}.context"
    if cfg.device == "cpu":
        host = weights + kv + cfg.replicas * (activations + PROCESS_CPU)
        return LoadedEngine(
            cfg=cfg, gpus=0, replicas=cfg.replicas, host=host, room=rows, remedy=remedy, problems=tuple(problems)
        )
    other, libraries = (0.0, 0.0) if held_dtype else (PROCESS_GPU, PROCESS_HOST)
    return LoadedEngine(
        cfg=cfg, gpus=1, replicas=1, weights=weights, activations=activations, kv=kv, other=other,
        host=libraries + weights, room=rows, remedy=remedy, problems=tuple(problems),
    )  # fmt: skip


def _vllm(place: str, cfg: VllmEngineConfig, shape: f.Shape, machine: Hardware, problems: list[str]) -> LoadedEngine:
    """vLLM takes the share ``gpu_memory`` of each GPU: weights, its largest pass, and KV cache in the remainder."""
    parallel = cfg.tensor_parallel
    replicas = 1
    try:
        replicas = replica_count(cfg, machine.count)
    except UserError as error:
        problems.append(f"{place}: {error}")
    if shape.heads % parallel or (shape.kv_heads % parallel and parallel % shape.kv_heads):
        problems.append(
            f"{place}.tensor_parallel is {parallel}, which does not divide the model's {shape.heads} heads and "
            f"{shape.kv_heads} key heads; set a divisor."
        )
    weights = f.frozen_bytes(shape, cfg.dtype) / parallel
    activations = (
        f.inference_activations(shape, pass_tokens(cfg), logits=cfg.max_sequences, bytes_each=f.BYTES[cfg.dtype])
        / parallel
    )
    token = f.kv_bytes(shape, cfg.dtype) / min(parallel, shape.kv_heads)
    kv = cfg.gpu_memory * machine.memory - weights - activations - PROCESS_GPU
    if kv < token * cfg.context:
        problems.append(
            f"{place}.gpu_memory leaves {max(kv, 0) / 1e9:.1f} GB of {machine.memory / 1e9:.1f} GB for KV cache, and "
            f"one sequence of {cfg.context} tokens needs {token * cfg.context / 1e9:.1f} GB; raise it or "
            "tensor_parallel, or lower context."
        )
    kv = max(kv, 0.0)
    gpus = min(replicas * parallel, machine.count)
    return LoadedEngine(
        cfg=cfg, gpus=gpus, replicas=replicas, weights=weights, activations=activations, kv=kv, other=PROCESS_GPU,
        host=PROCESS_HOST * replicas * parallel, room=replicas * kv / token, remedy=f"lower {place}.gpu_memory",
        problems=tuple(problems),
    )  # fmt: skip


def engine_seconds(call: Calls, engine: LoadedEngine, shape: f.Shape, machine: Hardware) -> float:
    """Seconds to prefill all prompts and then decode, with as many concurrent sequences as exist and fit. vLLM's
    replicas run on every machine."""
    if isinstance(engine.cfg, VllmEngineConfig):
        replicas, room = engine.replicas * machine.nodes, engine.room * machine.nodes
        engine = replace(engine, replicas=replicas, gpus=engine.gpus * machine.nodes, room=room)
    cfg, ways = engine.cfg, max(1, engine.gpus // engine.replicas)
    compute, traffic = machine.gpu.operations * COMPUTE * ways, machine.gpu.bandwidth * TRAFFIC * ways
    if cfg.dtype == "float32":
        compute /= 15  # without tensor cores
    asked = call.read * (call.samples if isinstance(cfg, VllmEngineConfig) and not cfg.prefix_caching else 1)
    reading = f.forward_operations(shape, asked, call.longest) / (compute * engine.replicas)
    rows = min(call.at_once * call.samples, _fitting(call, engine))
    rows = max(1, int(rows / engine.replicas))
    floor = VLLM_STEP
    if isinstance(cfg, TransformersEngineConfig):
        floor = shape.layers * GRAPH_LAYER
        together = min(batch_sizes(cfg, shape.parameters)[1], max(1, call.at_once))
        reading = max(reading, asked / (together * cfg.prefill_block) * floor)
    step = f.decode_seconds(
        shape, f.frozen_bytes(shape, cfg.dtype), rows, call.longest + call.new / 2, cfg.dtype,
        bandwidth=traffic, operations=compute, floor=floor,
    )  # fmt: skip
    return reading + max(call.written / (rows * engine.replicas), call.new) * step


def _fitting(call: Calls, engine: LoadedEngine) -> float:
    if isinstance(engine.cfg, TransformersEngineConfig):
        return engine.room
    most = engine.replicas * engine.cfg.max_sequences
    held = engine.room / (call.longest + call.new)
    return min(most, max(held, 1.0))
