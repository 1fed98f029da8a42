"""Real servers on 127.0.0.1 for the tests of AgentGym's protocol: our own, and one scripted to misbehave."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn

from selfimprove.envs.interface import AgentEnv
from selfimprove.envs.params import TextParams
from selfimprove.envs.registry import named
from selfimprove.envs.remote.server import listen, make_app, server_config
from tests.support.http_server import Handler, serve


@contextmanager
def our_server(
    name: str,
    make_env: Callable[[], AgentEnv],
    environments: int = 64,
    idle: float = 600.0,
    clock: Any = time.monotonic,
    port: int = 0,
) -> Iterator[str]:
    """Serve copies of an environment in a thread; yields the address."""
    protocol = named(TextParams)[name].agentgym()
    assert protocol is not None
    app = make_app(protocol.dialect, make_env, environments=environments, idle=idle, clock=clock)
    listener = listen("127.0.0.1", port)
    server = uvicorn.Server(server_config(app, timeout_graceful_shutdown=2))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=10)
        assert not thread.is_alive(), "the server ends when it is told to"


@dataclass
class Reply:
    """A response. ``body`` is sent as JSON unless it is bytes; ``cut`` closes the connection in the middle of it.

    ``location``: where a redirect leads.
    """

    body: Any = None
    status: int = 200
    cut: bool = False
    location: str = ""


@dataclass
class Hostile:
    """A server that answers every request with ``script(method and path, fields)`` and records it in ``seen``."""

    script: Callable[[str, dict[str, Any]], Reply]
    url: str = ""
    seen: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    def paths(self) -> list[str]:
        return [call for call, _ in self.seen]


@contextmanager
def hostile_server(script: Callable[[str, dict[str, Any]], Reply]) -> Iterator[Hostile]:
    """Serve ``script`` in threads."""
    server = Hostile(script)

    class Scripted(Handler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # headers and body are sent separately

        def do_POST(self) -> None:
            self._answer(json.loads(self.body()))

        def do_GET(self) -> None:
            self._answer({})

        def _answer(self, fields: dict[str, Any]) -> None:
            call = f"{self.command} {self.path}"
            server.seen.append((call, fields))
            reply = script(call, fields)
            body = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            headers = {"Location": reply.location} if reply.location else {}
            self.respond(reply.status, body, headers, cut=reply.cut)

    with serve(Scripted) as server.url:
        yield server
