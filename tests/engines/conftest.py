"""Fixtures for tests of engines."""

from pathlib import Path

import pytest

from selfimprove.engines.cpu.engine import TransformersEngine
from tests.engines.asking import make_engine
from tests.support.tiny import make_tiny_model


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a random model whose keys and values are shared by two query heads each."""
    return make_tiny_model(tmp_path_factory.mktemp("grouped") / "model", heads=4, kv_heads=2)


@pytest.fixture(scope="module")
def engine(folder: Path) -> TransformersEngine:
    return make_engine(folder)
