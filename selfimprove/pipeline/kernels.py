"""CPU kernels: those that are fastest here, or those that give the same bits on every x86-64 processor with AVX2.

The libraries below choose their kernels by the processor, and each kernel rounds in its own way: torch, oneDNN,
OpenBLAS and NumPy by its instructions, MKL by its maker too (on AMD it takes one path, whatever instructions it is told
to use). So the same run gives other last bits on another processor, and in time other tokens. ``run.kernels: portable``
names one path for each library; for MKL that is the only one that it offers on all makers' processors. They read these
variables when they are loaded, so a process that has begun without them starts again. So does a native stage that has
them from a run that was begun as portable.
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
"""Set with them, so that they are told apart from variables that a person has set."""
CPU = Path("/proc/cpuinfo")
"""Where Linux says which instructions the processor has."""


def wanted() -> object:
    """``run.kernels`` of the params; nothing if they cannot be read, which a stage says itself."""
    try:
        run = read_yaml(Path("params.yaml")).get("run")
    except UserError:
        return None
    return run.get("kernels") if isinstance(run, dict) else None


def environment(kernels: object) -> Mapping[str, str]:
    """The variables that choose these kernels; none for native, which is what the libraries choose themselves."""
    return {**PORTABLE, MARK: "portable"} if kernels == "portable" else {}


def chosen(kernels: object) -> bool:
    """Whether this process has started with them, and with no others of ours."""
    return environment(kernels).items() <= os.environ.items() and (kernels == "portable" or MARK not in os.environ)


def start_again(kernels: object) -> None:
    """Run this command anew, in the same process, with the variables that choose these kernels."""
    for name in (*PORTABLE, MARK) if MARK in os.environ else ():
        os.environ.pop(name, None)
    os.environ.update(environment(kernels))
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def check(kernels: Kernels) -> None:
    """Raises:
    UserError: this processor does not have the instructions of the portable kernels.
    """
    if kernels == "portable" and not is_portable_here():
        raise UserError("run.kernels: portable needs an x86-64 processor with AVX2, and this is not one; set native.")


def is_portable_here() -> bool:
    """Whether this is an x86-64 processor with AVX2; where no file says so, any x86-64."""
    x86 = platform.machine() in ("x86_64", "AMD64")
    return x86 and (not CPU.is_file() or " avx2 " in CPU.read_text(encoding="utf-8"))
