"""Fixtures for tests of Reflect-RL."""

from pathlib import Path

import pytest

from tests.support.tiny import make_tiny_model


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a random model whose next token is far from certain, as at the start of reinforcement learning."""
    return make_tiny_model(tmp_path_factory.mktemp("undecided") / "model", hidden=32, spread=0.08)
