"""A server with OpenEnv's protocol for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from selfimprove.envs.openenv import session
from tests.support.openenv_server import OpenEnvServer


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reconnect almost without delay."""
    monkeypatch.setattr(session, "BACKOFF", 0.01)


@pytest.fixture
def server() -> Iterator[OpenEnvServer]:
    """A separate server for each test."""
    server = OpenEnvServer()
    yield server
    server.stop()
