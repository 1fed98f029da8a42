"""The final report of a rehearsal: minutes per stage, replacements, and what only a GPU can test."""

from collections.abc import Mapping, Sequence
from typing import Any

from selfimprove.core.overlay import mappings
from selfimprove.pipeline.rehearsal.rule import Params, Replacement


def tell(
    profile: str,
    methods: Sequence[str],
    asked: Params,
    run: Params,
    replaced: Sequence[Replacement],
    minutes: Mapping[str, float],
    gpus: int,
) -> str:
    """The final report, as plain text."""
    machine = f"{gpus} GPU{'s' * (gpus > 1)}" if gpus else "the CPU"
    lines = [f"\n{profile}: the whole graph of {', '.join(methods)} ran on {machine} "
             f"in {sum(minutes.values()):.1f} minutes.\n"]  # fmt: skip
    lines += [f"  {value:6.2f} min  {stage}" for stage, value in minutes.items()]
    lines += ["\nas in the profile", *(f"  {text}" for text in _kept(methods, run))]
    lines.append("\nreplaced")
    lines += [f"  {text}" for text in replacements(replaced)]
    if not gpus and "'vllm'" in str(run):
        lines.append("  device    vLLM: its build for GPUs -> its build for CPUs, the same version")
    missing = [] if gpus else _not_rehearsed(asked, methods)
    if missing:
        lines += ["\nnot rehearsed without a GPU", *(f"  {text}" for text in missing)]
    return "\n".join(lines)


def replacements(replaced: Sequence[Replacement]) -> list[str]:
    """One line per replacement; equal changes of several keys share a line, and changed sizes are only counted."""
    grouped: dict[tuple[str, str, str], list[str]] = {}
    for one in replaced:
        if one.kind != "size":
            last = one.key.rpartition(".")[2]
            grouped.setdefault((one.kind, last, f"{_short(one.old)} -> {_short(one.new)}"), []).append(one.key)
    lines = []
    for (kind, last, change), keys in grouped.items():
        where = keys[0] if len(keys) == 1 else f"{last} ({len(keys)} places)"
        lines.append(f"{kind:8}  {where}: {change}")
    sizes = sum(one.kind == "size" for one in replaced)
    return [*lines, f"{'size':8}  {sizes} keys: fewer tasks, steps and iterations, shorter texts: replaced.json"]


def _kept(methods: Sequence[str], run: Params) -> list[str]:
    lines = []
    for method in methods:
        section = run[method]
        engines = {f"{name}: {one['engine']}" for name, one in section["engines"].items()}
        lines.append(f"{method}: engines {', '.join(sorted(engines))}")
        lines.append(f"{method}: {'; '.join(sorted(_trainings(section)))}")
    return lines


def _trainings(section: Params) -> set[str]:
    """Backend, launcher and trained weights of each training in a section."""
    found: set[str] = set()
    for _, node in mappings(section):
        if "launcher" in node and node.get("epochs") != 0:
            launcher = node["launcher"]
            kind = launcher["kind"] + (f" ZeRO-{launcher.get('zero_stage', 3)}" * (launcher["kind"] == "deepspeed"))
            lora = node.get("lora")
            what = _adapters(lora.get("quantize", "none")) if lora else "all weights"
            found.add(f"training by {node.get('backend', 'trainer')}, {kind}, {what}")
    return found


def _adapters(quantize: str) -> str:
    return "LoRA" if quantize == "none" else f"LoRA on {quantize} weights"


def _not_rehearsed(asked: Params, methods: Sequence[str]) -> list[str]:
    text = str({method: asked[method] for method in methods})
    shown = {
        "'cuda'": "CUDA itself: memory (`make plan` computes it), speed, and more than two processes over NCCL",
        "flash_attention_2": "FlashAttention's kernels",
        "bfloat16": "bfloat16 and TF32 arithmetic",
        "'vllm'": "vLLM's CUDA kernels and graphs",
        "'openai'": "the real teacher's answers, limits and price",
    }
    return [sentence for mark, sentence in shown.items() if mark in text]


def _short(value: Any) -> str:
    text = "(absent)" if value is None else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
