"""Makes the Python processes that a test starts behave as on macOS in one respect."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

NO_ADDRESS_SPACE_LIMIT = """
import resource

setrlimit = resource.setrlimit

def as_on_macos(kind, limits):
    if kind == resource.RLIMIT_AS:
        raise ValueError("current limit exceeds maximum limit")
    setrlimit(kind, limits)

resource.setrlimit = as_on_macos
"""


def without_address_space_limits(folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Let new processes refuse ``RLIMIT_AS``; Python runs ``folder``'s sitecustomize.py in each."""
    (folder / "sitecustomize.py").write_text(NO_ADDRESS_SPACE_LIMIT)
    patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")])))
