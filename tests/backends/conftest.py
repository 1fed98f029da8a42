"""Fixtures shared by several files: vLLM's engine, which takes a quarter of a minute to start, and a Ray cluster.

Fixtures import packages locally, because other backends' environments lack them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

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


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A head and a second node, with one CPU each."""
    # Ray's default niceness of 15 starves workers on a loaded machine.
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    from ray.cluster_utils import Cluster

    from tests.backends.ray_cluster import NODE

    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    cluster.add_node(**NODE)
    yield cluster
    cluster.shutdown()
