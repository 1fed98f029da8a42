"""One GPU: training with our trainer and generation with the default engine, compared with ``make plan``'s estimates.

The models are random, in the shapes of SmolLM2-135M and Qwen2.5 (0.5B, 1.5B), so nothing is downloaded. Every measured
row is printed as one line of JSON, and a row that fails reports its error while the others go on. Rows that have not
started after ``SECONDS`` are skipped. ``BENCH=gpu make bench`` runs this part.
"""

import gc
import json
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from bench.rates import answer_all, print_table, timed
from selfimprove.core.records import Message
from selfimprove.core.seeds import SeedKey, rng
from selfimprove.engines.base import Request
from selfimprove.engines.config import TransformersEngineConfig
from selfimprove.pipeline.plan.formulas import training_operations
from selfimprove.pipeline.plan.hardware import GPUS, Hardware, visible_gpus
from selfimprove.pipeline.plan.inference import engine_seconds, loaded_engine
from selfimprove.pipeline.plan.shapes import shape_of
from selfimprove.pipeline.plan.training import trained_model
from selfimprove.pipeline.plan.work import Calls, Training
from selfimprove.training.config import FinetuneParams, LoraConfig
from selfimprove.training.encode import EncodedExample

DEVICE: Literal["cpu", "cuda"] = "cuda"
SECONDS = 100.0

SIZES = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "vocab_size",
)  # fmt: skip
MODELS = {
    "135M": ("llama", (576, 1536, 30, 9, 3, 49152)),
    "1.5B": ("qwen2", (1536, 8960, 28, 12, 2, 151936)),
    "0.5B": ("qwen2", (896, 4864, 24, 14, 2, 151936)),
}
"""Type and ``SIZES`` of each model, in the order in which they are measured; embeddings are tied."""

SHORTEST, LONGEST = 200, 1024
"""Tokens of a training conversation, uniform; all of them are trained, as the plan assumes."""
STEPS, WARM = 9, 3
"""Optimiser steps of a training run, and how many of them, the first ones, do not count."""

WORDS, NEW, CONTEXT = 80, 64, 512
"""Words of a prompt (about five tokens each); tokens per completion, and of a slot."""


@dataclass(frozen=True)
class Trained:
    """A training run; ``batch``: conversations per optimiser step."""

    model: str
    micro_batch_tokens: int
    batch: int
    attention: Literal["sdpa", "segments"] = "sdpa"
    row_tokens: int = 1024
    lora: bool = False
    checkpointing: bool = False

    def __str__(self) -> str:
        kind = f"{self.model} {'LoRA' if self.lora else 'full'} {self.attention} {self.micro_batch_tokens}"
        return f"{kind} checkpointing" if self.checkpointing else kind


@dataclass(frozen=True)
class Generated:
    """A round of generation with the default engine; ``prefill``: rows and tokens per row of a prefill pass."""

    model: str
    slots: int
    requests: int
    prefill: tuple[int | Literal["auto"], int] = ("auto", 32)

    def __str__(self) -> str:
        return f"{self.model} {self.slots} slots, prefill {self.prefill[0]} x {self.prefill[1]}"


ROWS: tuple[Trained | Generated, ...] = (
    Trained("135M", 8192, 64),
    Trained("135M", 8192, 64, attention="segments"),
    Trained("135M", 16384, 64),
    Generated("135M", 128, 256),
    Generated("135M", 512, 512),
    Generated("135M", 512, 1024, prefill=(64, 128)),
    Trained("1.5B", 4096, 32, row_tokens=2048, lora=True, checkpointing=True),
    Trained("1.5B", 4096, 32, row_tokens=2048, lora=True),
    Generated("1.5B", 128, 256),
    Generated("1.5B", 128, 256, prefill=(64, 128)),
    Trained("0.5B", 8192, 32),
)
"""The LoRA runs have the sizes of ``profiles/rise-24gb.yaml``, except for shorter conversations."""


def measure(*, threads: int) -> dict[str, Any]:
    """Measure all rows on the first GPU.

    Returns:
        ``gpu``: the planner's name of this GPU; ``training`` and ``generation``: the rows, see ``train_row`` and
        ``generate_row``, each with its ``row`` (name) and ``seconds`` (loading included), or ``error``; ``valid``:
        whether every row was measured, with rates and memory above 0 and less than the GPU's peak operations.
    """
    began = time.monotonic()
    _, memory, gpu = visible_gpus() or (1, 80e9, GPUS["H100"])
    machine = Hardware(1, memory, gpu)
    result: dict[str, Any] = {"gpu": gpu.name, "gpu_bytes": memory, "training": [], "generation": []}
    with TemporaryDirectory() as scratch:
        for row in ROWS:
            found: dict[str, Any] = {"row": str(row)}
            started = time.monotonic()
            try:
                if started - began > SECONDS:
                    raise TimeoutError(f"skipped, because {SECONDS:.0f} s have passed")
                given = make_model(row.model, Path(scratch) / row.model), machine, threads
                found |= train_row(row, *given) if isinstance(row, Trained) else generate_row(row, *given)
            except Exception as error:
                found["error"] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            found["seconds"] = round(time.monotonic() - started, 1)
            print(json.dumps(found), flush=True)
            result["training" if isinstance(row, Trained) else "generation"].append(found)
    result["seconds"] = round(time.monotonic() - began, 1)
    result["valid"] = all(map(_possible, result["training"] + result["generation"]))
    return result


def _possible(row: dict[str, Any]) -> bool:
    measured = "error" not in row and min(row["tokens_per_second"], row["memory"]["tensors"]) > 0
    return measured and row.get("share_of_peak", 0) < 1


def make_model(name: str, folder: Path) -> Path:
    """Write a random model in bfloat16, created on the GPU, with a tokenizer of 320 ids, unless it is there."""
    import torch
    from transformers.models.auto.configuration_auto import AutoConfig
    from transformers.models.auto.modeling_auto import AutoModelForCausalLM

    from tests.support.tiny import train_tokenizer

    _release()
    if not (folder / "tokenizer_config.json").exists():
        torch.manual_seed(0)
        kind, sizes = MODELS[name]
        config = AutoConfig.for_model(
            kind, **dict(zip(SIZES, sizes, strict=True)), max_position_embeddings=8192, tie_word_embeddings=True,
            bos_token_id=None, eos_token_id=None, pad_token_id=None,
        )  # fmt: skip
        with torch.device(DEVICE):
            AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
        train_tokenizer(folder)
        _release()
    return folder


def conversations(count: int, vocabulary: int) -> list[EncodedExample]:
    """Seeded conversations of random ids."""
    random = rng("bench", "gpu", count)
    lengths = [random.randint(SHORTEST, LONGEST) for _ in range(count)]
    return [EncodedExample([random.randrange(vocabulary) for _ in range(n)], [1.0] * n) for n in lengths]


def train_row(row: Trained, folder: Path, machine: Hardware, threads: int) -> dict[str, Any]:
    """One run of our trainer.

    Returns:
        ``tokens_per_second``: real tokens, after the first steps; ``planned``: the plan's; ``share_of_peak``: of the
        GPU's bfloat16 operations, those of recomputation included; ``ms_per_step``: milliseconds of an optimiser step;
        ``memory``: see ``_memory``; ``padding``: share of padding; ``loss``: of the first and last step.
    """
    import torch

    from selfimprove.training.job import plan_of
    from selfimprove.training.trainer import SftJob, train

    shape = shape_of(str(folder))
    lora = LoraConfig(rank=32, alpha=64, dropout=0.05) if row.lora else None
    params = FinetuneParams(
        batch_size=row.batch, micro_batch_tokens=row.micro_batch_tokens, row_tokens=row.row_tokens, max_length=LONGEST,
        lr=1e-5, dtype="bfloat16", tf32=row.lora and DEVICE == "cuda", device=DEVICE, attention=row.attention,
        gradient_checkpointing=row.checkpointing, lora=lora, save_steps=10**7, logging_steps=1,
    )  # fmt: skip
    examples = conversations(row.batch * STEPS, shape.vocab)
    lengths = [len(one.ids) for one in examples]
    ends: list[float] = []

    def ended(*_: Any) -> None:
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        ends.append(time.perf_counter())

    with TemporaryDirectory() as scratch:
        out, checkpoints = Path(scratch) / "out", Path(scratch) / "checkpoints"
        job = SftJob(model_dir=folder, out_dir=out, checkpoints=checkpoints, params=params, seed=0, threads=threads)
        steps = plan_of(job, lengths).steps
        report = train(job, examples, ended)
    tokens, seconds = sum(step.tokens for step in steps[WARM:]), ends[-1] - ends[WARM - 1]
    every, longest = sum(lengths), sum(n * n for n in lengths) / sum(lengths)  # a token's mean conversation
    operations = training_operations(shape, tokens, longest, checkpointing=row.checkpointing, frozen=row.lora)
    plan = trained_model(Training("bench", params, every, max(lengths), len(steps)), shape, machine)
    return {
        "tokens_per_second": round(tokens / seconds),
        "planned": round(every / plan.seconds),
        "share_of_peak": round(operations / seconds / machine.gpu.operations, 5),
        "ms_per_step": round(1000 * seconds / (len(steps) - WARM), 1),
        "memory": _memory(plan.other, states=plan.states.total, activations=plan.activations),
        "padding": round(report.padding, 4),
        "attention": report.attention,
        "loss": [round(report.loss[place][1], 4) for place in (0, -1)],
    }


def generate_row(row: Generated, folder: Path, machine: Hardware, threads: int) -> dict[str, Any]:
    """One round of generation, and one in which every request draws a single token, mostly prefill.

    Returns:
        ``tokens_per_second``: generated tokens, prefill included; ``prompt``: tokens of a prompt; ``prefill``: prompt
        tokens per second of the second round; ``ms_per_step``: milliseconds of a decoding step, from the difference of
        the rounds; ``planned…``: the plan's; ``memory``: see ``_memory``.
    """
    from selfimprove.engines.cpu.engine import TransformersEngine

    rows, block = row.prefill
    cfg = TransformersEngineConfig(
        engine="transformers", slots=row.slots, context=CONTEXT, prefill_rows=rows, prefill_block=block,
        dtype="bfloat16", device=DEVICE,
    )  # fmt: skip
    engine = TransformersEngine(cfg, folder, threads=threads)
    # As many tokens as in the measured rounds, so that CUDA graphs of all their shapes are recorded before them.
    timed(engine, answer_all(engine, _requests(row.requests, NEW, words=WORDS)))
    runs, steps, read = [], [engine.stats.slot_steps], engine.stats.prompt_tokens
    for new in (1, NEW):
        engine.forget_prefixes()
        runs.append(timed(engine, answer_all(engine, _requests(row.requests, new, words=WORDS)))[1])
        steps.append(engine.stats.slot_steps)
    once, whole = runs
    more_steps = (steps[2] - 2 * steps[1] + steps[0]) / row.slots
    prompts = (engine.stats.prompt_tokens - read) // 2
    shape = shape_of(str(folder))
    plan = loaded_engine("bench", cfg, shape, machine)
    longest = round(prompts / row.requests)

    def planned(new: int) -> float:
        call = Calls("bench", row.requests, prompts, longest, new, row.requests * new, row.requests)
        return engine_seconds(call, plan, shape, machine)

    planned_steps = max(row.requests / row.slots, 1.0) * (NEW - 1)
    return {
        "tokens_per_second": round(whole.tokens / whole.seconds, 1),
        "planned": round(row.requests * NEW / planned(NEW), 1),
        "prompt": longest,
        "prefill": round(prompts / once.seconds),
        "planned_prefill": round(prompts / planned(1)),
        "ms_per_step": round(1000 * (whole.seconds - once.seconds) / more_steps, 2),
        "planned_ms_per_step": round(1000 * (planned(NEW) - planned(1)) / planned_steps, 2),
        "memory": _memory(plan.other, weights=plan.weights, activations=plan.activations, kv=plan.kv),
    }


def _requests(count: int, new: int, *, words: int) -> list[Request]:
    random = rng("bench", "gpu", "prompts", words)
    texts = [" ".join("".join(random.choices("bdfgklmprtv", k=4)) for _ in range(words)) for _ in range(count)]
    asked = [[Message(role="user", content=text)] for text in texts]
    return [Request(messages, SeedKey(0, f"task {i}"), max_tokens=new) for i, messages in enumerate(asked)]


def _memory(other: float, **parts: float) -> dict[str, float]:
    """Peak GB since the last ``_release``, and the plan's, from bytes of ``parts`` (tensors) and ``other``.

    ``tensors``: in tensors; ``held``: reserved by torch, plus ``outside`` (CUDA's context, libraries).
    """
    import torch

    free, total = torch.cuda.mem_get_info()
    outside = total - free - torch.cuda.memory_reserved()
    plan = {"tensors": sum(parts.values()), "held": sum(parts.values()) + other, **parts}
    peaks = {"tensors": torch.cuda.max_memory_allocated(), "held": torch.cuda.max_memory_reserved() + outside}
    sizes = {**peaks, "outside": outside, **{f"planned_{name}": size for name, size in plan.items()}}
    return {name: round(size / 1e9, 2) for name, size in sizes.items()}


def _release() -> None:
    """Free what the last row held, and reset the peaks."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def show(result: dict[str, Any]) -> None:
    """Print the tables for a result of ``measure``: rates in tokens/s, memory in GB, each with the plan's."""
    memory = {"tensors": "GB", "planned_tensors": "plan", "held": "held", "planned_held": "plan"}
    steps = {"ms_per_step": "ms/step", "planned_ms_per_step": "plan"}
    for part, more in (("training", {"share_of_peak": "of peak"}), ("generation", steps)):
        columns = {"tokens_per_second": "tokens/s", "planned": "plan"} | more | memory
        rows = [{**row, **row.get("memory", {})} for row in result[part]]
        shown = [[row["row"], *(f"{row[key]:,.6g}" if key in row else "-" for key in columns)] for row in rows]
        print_table(f"GPU {result['gpu']}, {part}", ("run", *columns.values()), shown)
