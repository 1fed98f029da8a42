"""Writing the trained model: a folder that loads wherever the one it came from did."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from selfimprove.chat import NAMED_TEMPLATES
from selfimprove.training.config import FinetuneParams, LoraConfig

if TYPE_CHECKING:
    from selfimprove.training.job import TrainJob
    from selfimprove.training.trainer import PackedTrainer

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
)


def fresh_folder(folder: Path) -> None:
    """Make an empty folder, deleting what an earlier, killed call left in its place."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)


def copy_model(source: Path, out_dir: Path, cfg: FinetuneParams) -> None:
    """Copy a model folder as it is: what zero epochs of training give."""
    fresh_folder(out_dir)
    for file in sorted(source.iterdir()):
        if file.is_file():
            shutil.copyfile(file, out_dir / file.name)
    _write_template(out_dir, cfg)


def copy_tokenizer(source: Path, out_dir: Path, cfg: FinetuneParams) -> None:
    """Give a model folder the tokenizer and chat template it was trained with (and its code, if it has its own)."""
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, out_dir / name)
    if cfg.trust_remote_code:
        for file in sorted(source.glob("*.py")):
            shutil.copyfile(file, out_dir / file.name)
    _write_template(out_dir, cfg)


def with_adapters(model: Any, lora: LoraConfig) -> Any:
    """The model with fresh low-rank adapters; nothing else is trained."""
    import peft

    config = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=lora.targets,
    )
    return peft.get_peft_model(model, config)


def save_model(trainer: PackedTrainer, job: TrainJob) -> None:
    """Write all weights in the run's dtype. Every process must call it: sharded weights are gathered."""
    import torch

    state = _full_state(trainer)
    if not trainer.args.should_save:
        return
    dtype = torch.bfloat16 if job.cfg.dtype == "bfloat16" else torch.float32
    fresh_folder(job.out_dir)
    model = trainer.accelerator.unwrap_model(trainer.model)
    model.config.dtype = dtype
    cast = {name: tensor.to("cpu", dtype) if tensor.is_floating_point() else tensor for name, tensor in state.items()}
    model.save_pretrained(job.out_dir, state_dict=cast)
    copy_tokenizer(job.model_dir, job.out_dir, job.cfg)


def save_merged(trainer: PackedTrainer, job: TrainJob) -> None:
    """Merge the adapters into the base's own (unquantised, float32) weights and write the sum in the run's dtype."""
    import torch
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config

    from selfimprove.training.job import load_base

    assert job.cfg.lora is not None
    state = _full_state(trainer)
    if not trainer.args.should_save:
        return
    adapters = {name: tensor.detach().cpu().float() for name, tensor in state.items() if "lora_" in name}
    # The base is loaded whole here, not in ZeRO-3 shards.
    unset_hf_deepspeed_config()
    base, _ = load_base(job, quantize=False)
    model = with_adapters(base, job.cfg.lora)
    missing = model.load_state_dict(adapters, strict=False)
    assert not missing.unexpected_keys, missing.unexpected_keys
    merged = model.merge_and_unload()
    dtype = torch.bfloat16 if job.cfg.dtype == "bfloat16" else torch.float32
    fresh_folder(job.out_dir)
    merged.to(dtype).save_pretrained(job.out_dir)
    copy_tokenizer(job.model_dir, job.out_dir, job.cfg)


def _full_state(trainer: PackedTrainer) -> dict[str, Any]:
    if trainer.is_deepspeed_enabled:
        return dict(trainer.accelerator.get_state_dict(trainer.deepspeed))
    return dict(trainer.accelerator.unwrap_model(trainer.model).state_dict())


def _write_template(out_dir: Path, cfg: FinetuneParams) -> None:
    # From now on the model speaks the format it was trained in, whatever it came with.
    if cfg.chat_template is not None:
        source = NAMED_TEMPLATES.get(cfg.chat_template) or Path(cfg.chat_template).read_text(encoding="utf-8")
        (out_dir / "chat_template.jinja").write_text(source, encoding="utf-8")
