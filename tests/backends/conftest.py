"""Fixtures shared by vLLM's tests: one engine for all of them, because an engine takes a quarter of a minute to start.

Fixtures import packages locally, because other backends' environments lack them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from selfimprove.engines.vllm.engine import VllmEngine
    from tests.backends.vllm_asking import Reference


@pytest.fixture(scope="session")
def vllm_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with as many positions as the engine's context."""
    from tests.backends.vllm_asking import CONTEXT
    from tests.support.tiny import make_tiny_model

    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", context=CONTEXT)


@pytest.fixture(scope="session")
def engine(vllm_dir: Path) -> Iterator[VllmEngine]:
    """vLLM in the same process as BM25, as in SPIN's stages."""
    import bm25s  # noqa: F401

    from tests.backends.vllm_asking import build, run

    engine = build(vllm_dir)
    yield engine
    run(engine.close())


@pytest.fixture(scope="session")
def reference(vllm_dir: Path) -> Reference:
    """transformers with the same model."""
    from tests.backends.vllm_asking import Reference

    return Reference(vllm_dir)
