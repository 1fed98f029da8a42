"""Environments. bm25s, which two of them search with, imports JAX if it is installed, and JAX would then reserve three
quarters of the first GPU."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
