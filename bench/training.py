"""Training throughput: our packed trainer vs. plain HF Trainer with padding; same data, model and number of steps.

``BENCH=training make bench`` prints a table, and JSON on its last line. Rates are real tokens (without padding) per
second of the training loop, excluding imports and loading. The fastest of several alternating runs counts, since other
work on the machine only slows a run down.
"""

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.rates import print_table
from selfimprove.core.seeds import rng
from selfimprove.training.config import FinetuneParams
from selfimprove.training.encode import EncodedExample

VOCABULARY = 420
CONTEXT_SHARE = 0.6


def make_examples(count: int, low: int = 60, high: int = 180) -> list[EncodedExample]:
    """Seeded dialogues of ``low`` to ``high`` tokens; the last 40 % of each has weight 1, the rest is context."""
    random = rng("bench", "training", count, low, high)
    examples = []
    for _ in range(count):
        length = random.randint(low, high)
        context = round(CONTEXT_SHARE * length)
        ids = [random.randrange(VOCABULARY) for _ in range(length)]
        examples.append(EncodedExample(ids, [0.0] * context + [1.0] * (length - context)))
    return examples


def make_model(folder: Path) -> Path:
    """A random Llama of the default's size: 0.8M parameters, width 128, 3 layers."""
    import torch
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=344,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        pad_token_id=0,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def packed(
    model_dir: Path, examples: Sequence[EncodedExample], params: FinetuneParams, threads: int
) -> dict[str, float]:
    """One run of our trainer: real tokens per second, share of padding, mean loss."""
    from selfimprove.training.trainer import SftJob, train

    with tempfile.TemporaryDirectory() as folder:
        job = SftJob(
            model_dir=model_dir,
            out_dir=Path(folder) / "out",
            checkpoints=Path(folder) / "checkpoints",
            params=params,
            seed=0,
            threads=threads,
        )
        report = train(job, examples)
    return {
        "tokens_per_second": report.timing.tokens_per_second,
        "padding": report.padding,
        "loss": sum(loss for _, loss in report.loss) / len(report.loss),
    }


def padded(
    model_dir: Path, examples: Sequence[EncodedExample], params: FinetuneParams, threads: int
) -> dict[str, float]:
    """One run of plain HF Trainer: shuffled batches, each padded to its longest example; mean token loss."""
    import torch
    from transformers.models.auto.modeling_auto import AutoModelForCausalLM
    from transformers.trainer import Trainer
    from transformers.trainer_callback import PrinterCallback
    from transformers.training_args import TrainingArguments

    widths: list[tuple[int, int]] = []

    def collate(batch: list[EncodedExample]) -> dict[str, Any]:
        width = max(len(one.ids) for one in batch)
        widths.append((width * len(batch), sum(len(one.ids) for one in batch)))
        ids = torch.zeros(len(batch), width, dtype=torch.long)
        mask = torch.zeros(len(batch), width, dtype=torch.long)
        labels = torch.full((len(batch), width), -100)
        for row, one in enumerate(batch):
            length, learnt = len(one.ids), [w > 0 for w in one.token_weights]
            ids[row, :length] = torch.tensor(one.ids)
            mask[row, :length] = 1
            labels[row, :length] = torch.where(torch.tensor(learnt), ids[row, :length], -100)
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    model = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=params.batch_size,
            num_train_epochs=params.epochs,
            learning_rate=params.lr,
            lr_scheduler_type=params.schedule,
            warmup_steps=params.warmup_ratio,
            optim="adamw_torch",
            use_cpu=True,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            log_level="error",
            dataloader_pin_memory=False,
            remove_unused_columns=False,
        )
        trainer = Trainer(model=model, args=arguments, train_dataset=list(examples), data_collator=collate)
        trainer.remove_callback(PrinterCallback)
        started = time.monotonic()
        result = trainer.train()
        seconds = time.monotonic() - started
    torch.set_num_threads(before)
    computed, real = (sum(pair[i] for pair in widths) for i in (0, 1))
    return {"tokens_per_second": real / seconds, "padding": 1 - real / computed, "loss": float(result.training_loss)}


def measure(*, examples: int = 640, repeats: int = 2, threads: int = 1, batch_size: int = 16) -> dict[str, Any]:
    """Compare the two trainers with the default settings; ``ratio`` is ours over plain.

    ``valid`` is false if a metric is impossible: padding outside 0 to 1, or losses that differ by more than shuffling
    explains, in which case the two did not do the same work.
    """
    params = FinetuneParams(
        batch_size=batch_size, row_tokens=192, micro_batch_tokens=8192, max_length=192, lr=1e-3, save_steps=10**7
    )
    data = make_examples(examples)
    with tempfile.TemporaryDirectory() as folder:
        model_dir = make_model(Path(folder) / "model")
        warm = data[: 4 * batch_size]
        packed(model_dir, warm, params, threads)
        padded(model_dir, warm, params, threads)
        ours, plain = [], []
        for _ in range(repeats):
            ours.append(packed(model_dir, data, params, threads))
            plain.append(padded(model_dir, data, params, threads))
    best_ours, best_plain = (max(runs, key=lambda run: run["tokens_per_second"]) for runs in (ours, plain))
    fillings = (best_ours["padding"], best_plain["padding"])
    return {
        "threads": threads,
        "examples": examples,
        "batch_size": batch_size,
        "tokens_per_second": {
            "packed": round(best_ours["tokens_per_second"]),
            "padded": round(best_plain["tokens_per_second"]),
        },
        "ratio": round(best_ours["tokens_per_second"] / best_plain["tokens_per_second"], 3),
        "padding": {"packed": round(fillings[0], 4), "padded": round(fillings[1], 4)},
        "loss": {"packed": round(best_ours["loss"], 4), "padded": round(best_plain["loss"], 4)},
        "valid": all(0 <= share < 1 for share in fillings)
        and abs(best_ours["loss"] - best_plain["loss"]) < 0.02 * best_plain["loss"],
    }


def show(result: dict[str, Any]) -> None:
    """Print the table for a result of ``measure``."""
    rates, padding, loss = (result[key] for key in ("tokens_per_second", "padding", "loss"))
    rows = [(name, f"{rate:,}", f"{padding[name]:.1%}", f"{loss[name]:.3f}") for name, rate in rates.items()]
    title = f"Training, {result['threads']} thread(s), {result['examples']} examples"
    print_table(title, ("trainer", "real tokens/s", "padding", "mean loss"), rows)
