"""The packages that results depend on, in their installed versions: part of the identity of every run.

These are pyproject.toml's dependencies with their own (the names in ``requirements/runtime.lock``) and torch, which
that lock omits. Development tools (linters, pytest), optional packages (vLLM, bitsandbytes, ScienceWorld) and the build
of a version (``+cpu``, ``+cu130``) do not count, so that machines with and without GPUs agree on the default's runs.
"""

import os
import re
import sys
from pathlib import Path

LOCK = Path("requirements/runtime.lock")
SUFFIX = ".dist-info"


def installed(root: Path = Path()) -> str:
    """One ``name==version`` per line, sorted by name; packages that are not installed are omitted.

    Versions are read from the names of ``.dist-info`` folders (``name-version.dist-info`` in the wheel specification).
    This takes a millisecond; ``importlib.metadata``, which opens every file in them, takes two hundred.
    """
    names = {*re.findall(r"(?m)^([^\s=]+)==", (root / LOCK).read_text(encoding="utf-8")), "torch"}
    found: dict[str, str] = {}
    for folder in reversed(sys.path):  # reversed: Python imports the first match
        for entry in os.listdir(folder) if os.path.isdir(folder) else ():
            if entry.endswith(SUFFIX):
                name, _, version = entry.removesuffix(SUFFIX).partition("-")
                found[_normal(name)] = version.partition("+")[0]
    return "".join(f"{name}=={found[_normal(name)]}\n" for name in sorted(names) if _normal(name) in found)


def _normal(name: str) -> str:
    """A distribution's normalised name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()
