"""The packages that results depend on, in the versions really installed: part of the identity of every run.

They are what pyproject.toml's dependencies bring (the names in ``requirements/runtime.lock``) and torch, which that
lock leaves out. Development tools (linters, pytest) and packages installed beside them (vLLM, bitsandbytes,
ScienceWorld) do not count, and neither does the build of a version (``+cpu``, ``+cu130``): so a machine with GPUs and
one without agree on the default's runs.
"""

import os
import re
import sys
from pathlib import Path

LOCK = Path("requirements/runtime.lock")
SUFFIX = ".dist-info"


def installed(root: Path = Path()) -> str:
    """``name==version``, a line each, sorted by name; what is not installed is left out.

    Read from the names of the ``.dist-info`` folders (``name-version.dist-info``, by the wheel format's specification),
    which takes a millisecond; ``importlib.metadata`` opens every file in them and takes two hundred.
    """
    names = {*re.findall(r"(?m)^([^\s=]+)==", (root / LOCK).read_text(encoding="utf-8")), "torch"}
    found: dict[str, str] = {}
    for folder in reversed(sys.path):  # the first on the path is what Python imports
        for entry in os.listdir(folder) if os.path.isdir(folder) else ():
            if entry.endswith(SUFFIX):
                name, _, version = entry.removesuffix(SUFFIX).partition("-")
                found[_normal(name)] = version.partition("+")[0]
    return "".join(f"{name}=={found[_normal(name)]}\n" for name in sorted(names) if _normal(name) in found)


def _normal(name: str) -> str:
    """A distribution's name as all its spellings are compared (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()
