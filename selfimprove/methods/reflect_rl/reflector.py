"""The frozen reflection model of a run of reinforcement learning, over any engine, and a hash of its weights."""

from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

from selfimprove.core.errors import UserError
from selfimprove.engines.base import Engine
from selfimprove.engines.cache import RememberingEngine
from selfimprove.engines.config import EngineConfig, OpenAiEngineConfig, TransformersEngineConfig, VllmEngineConfig
from selfimprove.engines.factory import make_engine

_CHUNK = 1 << 24


class Reflector(NamedTuple):
    """An engine that caches greedy completions, and a hash of its weights.

    ``weights`` is called before and after a run. It hashes the tensors of our own engine's model, or the files in the
    folder of a vLLM engine's; for an endpoint's model it returns None.
    """

    engine: Engine
    weights: Callable[[], str | None]


def make_reflector(folder: Path, cfg: EngineConfig, threads: int) -> Reflector:
    """The engine specified by ``cfg`` over the model in ``folder``, loaded once and without gradients.

    Raises:
        UserError: as ``make_engine``.
    """
    if not isinstance(cfg, TransformersEngineConfig):
        engine = make_engine(cfg, policy_dir=folder, threads=threads, expert=None)
        known = isinstance(cfg, VllmEngineConfig)
        return Reflector(RememberingEngine(engine), lambda: files_hash(folder) if known else None)
    from selfimprove.engines.cpu.engine import TransformersEngine
    from selfimprove.methods.reflect_rl.rl_policy import weights_hash
    from selfimprove.models.loading import load_causal_lm

    model = load_causal_lm(folder, dtype=cfg.dtype, device=cfg.device, trust_remote_code=cfg.trust_remote_code)
    model.requires_grad_(False)
    own = TransformersEngine(cfg, folder, threads=threads, model=model)
    return Reflector(RememberingEngine(own), lambda: weights_hash(model))


def check_reflector_engine(cfg: EngineConfig, processes: int) -> None:
    """Refuse an engine that several processes of reinforcement learning cannot share.

    Raises:
        UserError: vLLM, since each process would load its own.
    """
    if isinstance(cfg, VllmEngineConfig) and processes > 1:
        raise UserError(
            f"reflect_rl.engines.reflector: each of the {processes} processes of rl.launcher would load its own vLLM; "
            "set rl.launcher to {kind: single, processes: 1}, or the engine to transformers."
        )


def shared_out(cfg: EngineConfig, processes: int) -> EngineConfig:
    """The configuration with an endpoint's concurrency divided among the processes; unchanged for other engines."""
    if not isinstance(cfg, OpenAiEngineConfig):
        return cfg
    return cfg.model_copy(update={"concurrency": max(1, cfg.concurrency // processes)})


def files_hash(folder: Path) -> str:
    """Hash of the names, sizes and contents of a folder's files."""
    digest = blake2b(digest_size=16)
    for file in sorted(path for path in folder.iterdir() if path.is_file()):
        digest.update(f"{file.name}\0{file.stat().st_size}\0".encode())
        with file.open("rb") as handle:
            while block := handle.read(_CHUNK):
                digest.update(block)
    return digest.hexdigest()
