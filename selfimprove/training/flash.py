"""FlashAttention from pre-built kernels: whether it is available, and the fallback ``segments``.

transformers uses the package flash-attn if it is installed. Otherwise it downloads a kernel built for this torch and
CUDA (``kernels-community/flash-attn2``, major version 3) with the package ``kernels``. Both may be unavailable: the
package or the network is missing, or the GPU is too old. Rows are packed for the attention that runs, so ``settle``
checks before anything is planned. The check runs in a separate process (``python -m selfimprove.training.flash``),
because it loads the kernel and initialises CUDA, whose memory the training processes need.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, TypeVar

from selfimprove.training.config import FinetuneParams

NAME = "flash_attention_2"
INSTEAD = "segments"
REASON = "reason: "

P = TypeVar("P", bound=FinetuneParams)


def settle(params: P) -> P:
    """The params with an attention that can run here; prints a warning if it differs from the configured one."""
    if params.attention != NAME:
        return params
    reason = why_not()
    if reason is None:
        return params
    print(
        f"train.attention: {NAME} cannot run here ({reason}); {INSTEAD} runs instead, on Ampere or newer with "
        "the FlashAttention that torch contains. See docs/gpu.md for how to install the kernel.",
        file=sys.stderr,
        flush=True,
    )
    return params.model_copy(update={"attention": INSTEAD})


def why_not() -> str | None:
    """A short reason why FlashAttention cannot run here; None if it can."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*(p for p in sys.path if p), str(Path.cwd())])}
    command = [sys.executable, "-m", "selfimprove.training.flash"]
    asked = subprocess.run(command, env=environment, capture_output=True, text=True, errors="replace", check=False)
    if asked.returncode == 0:
        return None
    told = [line.removeprefix(REASON) for line in asked.stdout.splitlines() if line.startswith(REASON)]
    return told[-1] if told else f"the process that tried it ended with code {asked.returncode}"


def running(model: Any) -> str:
    """The attention that a loaded model uses; for a downloaded kernel, ``name@revision``."""
    attention = str(model.config._attn_implementation)
    if "kernels" in sys.modules:
        for loaded in sys.modules["kernels"].get_loaded_kernels():
            if loaded.repo_info is not None and loaded.repo_info.repo_id == attention:
                return f"{attention}@{loaded.repo_info.revision}"
    return attention


def attend() -> None:
    """Load FlashAttention as a model does and apply it to two short sequences; may raise any exception."""
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
    """Exit code 0 if FlashAttention runs here; otherwise 1, with the reason on standard output."""
    try:
        attend()
    except Exception as error:  # third-party code: whatever it raises, training continues without it
        words = " ".join(str(error).split()) or type(error).__name__
        print(REASON + words.split(". ")[0].rstrip("."), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
