"""The workbench, made once a session (some ten seconds: torch, a tokenizer, a model, its first SFT)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.pipeline.workbench import Forks, Workbench, copy_code


@pytest.fixture(scope="session")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    """First stages run, forks ready."""
    folder = copy_code(tmp_path_factory.mktemp("bench"))
    with Forks(folder) as forks:
        yield Workbench(folder, forks)
