"""Models and engines for the benchmarks: small models (0.2M parameters), warm-started as in the default profile."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from selfimprove.core.records import Example
from selfimprove.engines.config import TransformersEngineConfig
from selfimprove.engines.factory import make_engine
from selfimprove.models.scratch import ScratchArch, build_scratch_model
from selfimprove.models.tokenizer import TokenizerParams, train_tokenizer
from selfimprove.training.config import FinetuneParams
from selfimprove.training.launch import finetune


def engine_of(folder: Path, *, slots: int, context: int, threads: int, replicas: int = 1, **options: int) -> Any:
    """The default engine with a model; ``slots`` counts the slots of all its replicas."""
    sizes: dict[str, Any] = {"prefill_rows": min(16, slots), **options}
    cfg = TransformersEngineConfig(engine="transformers", slots=slots, replicas=replicas, context=context, **sizes)
    return make_engine(cfg, policy_dir=folder, threads=threads, expert=None)


def warm_started(
    folder: Path,
    rows: Sequence[Mapping[str, Any]],
    tokenizer: TokenizerParams,
    sets: Mapping[str, Sequence[Example]],
    *,
    length: int,
    positions: int,
    epochs: float,
    threads: int,
    row_tokens: int | None = None,
) -> dict[str, Path]:
    """Train one model for each of ``sets``, all from the same base, whose tokenizer is trained on ``rows``."""
    fixed = [str(row["text"]) for row in rows if row.get("fixed")]
    free = (str(row["text"]) for row in rows if not row.get("fixed"))
    train_tokenizer(free, tokenizer, folder / "tokenizer", fixed=fixed)
    arch = ScratchArch(hidden=64, layers=3, heads=4, intermediate=168, positions=positions)
    build_scratch_model(arch, folder / "tokenizer", folder / "base", 0)
    params = FinetuneParams(
        epochs=epochs, batch_size=16, row_tokens=row_tokens or length, max_length=length, lr=4e-3, schedule="linear",
        betas=(0.9, 0.98),
    )  # fmt: skip
    for name, examples in sets.items():
        scratch = folder / "scratch"
        finetune(folder / "base", examples, folder / name, params, scratch=scratch, seed=0, threads=threads)
    return {name: folder / name for name in sets}
