"""Whether processes that compute are forked from this one, which has imported their packages, or begin anew."""

import copyreg
import sys
from types import MappingProxyType
from typing import Any

START = "spawn" if sys.platform == "darwin" else "fork"
"""Start method of ``multiprocessing``. On macOS, importing torch starts threads of the system's libraries (Metal,
Accelerate), and their Objective-C code ends a fork of such a process with SIGABRT."""


def _read_only(values: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(values)


# Environments that are sent to a new process contain some; Python itself cannot pickle them.
copyreg.pickle(MappingProxyType, lambda view: (_read_only, (dict(view),)))
