"""Fixtures shared by several files: vLLM's engine (it takes a quarter of a minute to start), a Ray cluster, a browser.

Fixtures import packages locally, because other backends' environments lack them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from ray.cluster_utils import Cluster

    from selfimprove.engines.vllm.engine import VllmEngine
    from tests.backends.page_browser import Tab
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


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium."""
    from tests.backends.page_browser import opened_browser

    with opened_browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(run, report) of a small run whose models write text that could break out of a page."""
    from tests.backends.page_browser import write_report

    return write_report(tmp_path_factory.mktemp("page"))


@pytest.fixture
def tab(browser: Browser, report: tuple[Path, Path]) -> Iterator[Tab]:
    """A tab for this report, which must have recorded nothing wrong in the end."""
    from tests.backends.page_browser import Tab

    opened = Tab(browser, report[1])
    yield opened
    opened.close()
    assert opened.wrong == []
