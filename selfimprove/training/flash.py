"""FlashAttention from pre-built kernels: whether it is available here, and what runs if it is not.

transformers takes the package flash-attn where somebody installed it, and else fetches a kernel that was built for this
torch and CUDA (``kernels-community/flash-attn2``, major version 3) through the package ``kernels``. Neither may be
there: no package, no network, a GPU that is too old. Which attention runs decides how rows are packed, so ``settle``
asks before anything is planned. It asks in a process of its own (``python -m selfimprove.training.flash``), because the
answer takes loading the kernel and starting CUDA, whose memory the training processes need.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, TypeVar

from selfimprove.training.config import FinetuneParams

NAME = "flash_attention_2"
INSTEAD = "sdpa"
REASON = "reason: "

P = TypeVar("P", bound=FinetuneParams)


def settle(params: P) -> P:
    """The params with the attention that can run here; a sentence on standard error where that is another one."""
    if params.attention != NAME:
        return params
    reason = why_not()
    if reason is None:
        return params
    print(
        f"train.attention: {NAME} cannot run here ({reason}); {INSTEAD} runs instead, with a mask over packed rows, "
        "which is slower. See docs/gpu.md for how to install the kernel.",
        file=sys.stderr,
        flush=True,
    )
    return params.model_copy(update={"attention": INSTEAD})


def why_not() -> str | None:
    """Why FlashAttention cannot run here, in a few words; None if it can."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*(p for p in sys.path if p), str(Path.cwd())])}
    command = [sys.executable, "-m", "selfimprove.training.flash"]
    asked = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", check=False)
    if asked.returncode == 0:
        return None
    told = [line.removeprefix(REASON) for line in asked.stdout.splitlines() if line.startswith(REASON)]
    return told[-1] if told else f"the process that tried it ended with code {asked.returncode}"


def running(model: Any) -> str:
    """The attention that a loaded model computes with; for a kernel that was fetched, ``name@revision``."""
    attention = str(model.config._attn_implementation)
    if "kernels" in sys.modules:
        for loaded in sys.modules["kernels"].get_loaded_kernels():
            if loaded.repo_info is not None and loaded.repo_info.repo_id == attention:
                return f"{attention}@{loaded.repo_info.revision}"
    return attention


def attend() -> None:
    """Load FlashAttention as a model does and compute two short sequences with it; whatever that raises."""
    import torch
    from transformers.modeling_flash_attention_utils import (
        FLASH_ATTN_KERNEL_FALLBACK,
        _flash_attention_forward,
        lazy_import_flash_attention,
    )
    from transformers.utils.import_utils import is_flash_attn_2_available, is_kernels_available

    packaged = is_flash_attn_2_available()
    if not packaged and not is_kernels_available():
        raise ImportError("the package kernels, which provides it, is not installed")
    name = NAME if packaged else FLASH_ATTN_KERNEL_FALLBACK[NAME]
    lazy_import_flash_attention(name)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    states = torch.ones(1, 4, 2, 64, dtype=torch.bfloat16, device=device)
    positions = torch.tensor([[0, 1, 0, 1]], device=device)
    mixed = _flash_attention_forward(
        states, states, states, None, 4, is_causal=True, position_ids=positions, attn_implementation=name
    )
    if not bool((mixed == 1).all()):
        raise RuntimeError("it computes wrong values on this GPU")


def main() -> int:
    """Exit code 0 if FlashAttention runs here; else 1, and the reason on standard output."""
    try:
        attend()
    except Exception as error:  # a kernel is foreign code: whatever it raises, training goes on without it
        words = " ".join(str(error).split()) or type(error).__name__
        print(REASON + words.split(". ")[0].rstrip("."), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
