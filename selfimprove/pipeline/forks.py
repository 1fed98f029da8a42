"""Which stages can be forked from the warm helper (``pipeline.warm``) on a machine with a GPU.

CUDA cannot be initialised in a fork of a process that has queried it, and some packages query it when they are
imported. The helper imports without them (``QUERY_CUDA``) and with ``NVML_CHECK``, with which torch asks the driver's
management library instead. If CUDA has been queried all the same, no stage is forked. Stages whose params name a GPU
are forked only if a fork has computed a sum on it, which is tried once. Stages with vLLM always run in their own
processes, since it starts processes of its own.
"""

import math
import os
import signal
import time
from collections.abc import Callable
from typing import Any

from selfimprove.core.overlay import mappings

NVML_CHECK = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""With this environment, ``torch.cuda.is_available`` does not initialise CUDA."""
QUERY_CUDA = ("bitsandbytes",)
"""Packages that initialise CUDA when they are imported; hidden from the helper's imports, and loaded by the stages."""
TRIAL_SECONDS = 60
"""A trial on the GPU that takes longer counts as failed."""
POLL_SECONDS = 0.02


def uses_gpu(params: Any) -> bool:
    """Whether params, or a part of them, contain ``device: cuda`` or ``engine: vllm`` at any depth."""
    return uses_vllm(params) or any(part.get("device") == "cuda" for _, part in mappings(params))


def uses_vllm(params: Any) -> bool:
    """Whether params, or a part of them, contain ``engine: vllm`` at any depth."""
    return any(part.get("engine") == "vllm" for _, part in mappings(params))


def tried_in_fork(trial: Callable[[], bool]) -> bool:
    """Whether a trial succeeds in a fork of this process, within ``TRIAL_SECONDS`` and without an exception."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(math.ceil(TRIAL_SECONDS))  # ends it even if this process, which waits for it, has ended
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nowhere, number)
        try:
            os._exit(0 if trial() else 1)
        except BaseException:
            os._exit(1)
    end = time.monotonic() + TRIAL_SECONDS
    while time.monotonic() < end:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status == 0
        time.sleep(POLL_SECONDS)
    os.kill(child, signal.SIGKILL)  # not waited for: a driver may hold it
    return False


def cuda_unused() -> bool:
    """A trial: whether the process that it was forked from has not queried CUDA."""
    import torch

    return not torch.cuda._is_in_bad_fork()


def gpu_computes() -> bool:
    """A trial: whether a sum on the GPU is right."""
    import torch

    return float(torch.ones(2, device="cuda").sum()) == 2
