"""The package bm25s, imported on first use: params are also read where it is not installed."""

import os
from typing import Any


def package() -> Any:
    """bm25s. It imports JAX if that is installed, and JAX would reserve three quarters of the first GPU."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    import bm25s

    return bm25s
