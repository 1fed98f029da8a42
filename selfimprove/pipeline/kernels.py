"""CPU kernels: the fastest ones here, or ones that give identical bits on every x86-64 processor with AVX2.

The libraries below dispatch kernels by processor, and each kernel rounds differently. torch, oneDNN, OpenBLAS and NumPy
dispatch by instruction set, MKL also by vendor (on AMD it uses one path, whatever instruction set is requested). The
same run therefore differs in the low-order bits on another processor, and eventually in its tokens. ``run.kernels:
portable`` selects one path for each library; for MKL, the only one available on all vendors' processors. The libraries
read these variables when they are loaded, so a process started without them restarts itself. So does a native stage
that has inherited them from a portable run.

That path of MKL computes square roots of tensors, and logarithms in float64, with the processor's approximate
instructions, whose results differ by vendor, and torch's ``sqrt`` always calls it. An optimiser must therefore be a
fused one, which takes the processor's own square roots; torch has no fused RMSProp.
"""

import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from selfimprove.core.errors import UserError
from selfimprove.core.yaml import read_yaml

Kernels = Literal["native", "portable"]
PORTABLE: Mapping[str, str] = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_CBWR": "COMPATIBLE",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "OPENBLAS_CORETYPE": "Haswell",
    "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR",
}
MARK = "SELFIMPROVE_KERNELS"
"""Set together with ``PORTABLE``, to distinguish these variables from ones that the user has set."""
CPU = Path("/proc/cpuinfo")
"""Where Linux lists the processor's instruction sets."""


def wanted() -> object:
    """``run.kernels`` of the params; None if they cannot be read, which the stage itself reports."""
    try:
        run = read_yaml(Path("params.yaml")).get("run")
    except UserError:
        return None
    return run.get("kernels") if isinstance(run, dict) else None


def environment(kernels: object) -> Mapping[str, str]:
    """The environment variables that select these kernels; none for native, the libraries' own choice."""
    return {**PORTABLE, MARK: "portable"} if kernels == "portable" else {}


def chosen(kernels: object) -> bool:
    """Whether this process was started with exactly the variables for these kernels."""
    return environment(kernels).items() <= os.environ.items() and (kernels == "portable" or MARK not in os.environ)


def start_again(kernels: object) -> None:
    """Re-execute this command in the same process with the variables that select these kernels."""
    for name in (*PORTABLE, MARK) if MARK in os.environ else ():
        os.environ.pop(name, None)
    os.environ.update(environment(kernels))
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def check(kernels: Kernels) -> None:
    """Raises:
    UserError: this processor cannot run the portable kernels.
    """
    if kernels == "portable" and not is_portable_here():
        raise UserError("run.kernels: portable needs an x86-64 processor with AVX2, and this is not one; set native.")


def is_portable_here() -> bool:
    """Whether this is an x86-64 processor with AVX2 (any x86-64 if ``CPU`` does not exist)."""
    return _is_x86() and (not CPU.is_file() or " avx2 " in CPU.read_text(encoding="utf-8"))


def name_of(capability: str) -> str:
    """The name of native kernels, by torch's CPU capability: ``default``, ``avx2`` or ``avx512``.

    Those of another processor than x86-64, which torch calls default too, are named after it: ``arm64`` (macOS),
    ``aarch64`` (Linux), and ``aarch64-sve256`` with vector instructions that not all have.
    """
    if _is_x86():
        return capability.lower()
    return "-".join([platform.machine(), *([capability.lower()] if "SVE" in capability.upper() else [])])


def _is_x86() -> bool:
    return platform.machine() in ("x86_64", "AMD64")
