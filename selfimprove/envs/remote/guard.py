"""Protects the environment server from its clients: size limits, time limits, and allowed hosts.

Any web page can make a browser on the same machine send requests. Such a request has an ``Origin`` header, a ``Host``
that a foreign name server resolves to this machine (DNS rebinding), or a content type other than JSON, and is refused.
AgentGym's clients send none of these.
"""

import asyncio
import resource
import socket
from collections.abc import Collection
from ipaddress import ip_address
from typing import Any

from starlette.requests import Request
from uvicorn.protocols.http.h11_impl import H11Protocol

PATIENCE = 20.0
"""Seconds in which a client must send a complete request, from the connection or its last answer on."""

MOST_CONNECTIONS = 512
"""Maximum concurrent connections; fewer if the process's limit of open files is low."""


def most_connections() -> int:
    """Half of this process's limit of open files, at most ``MOST_CONNECTIONS``; the rest is for environments."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(MOST_CONNECTIONS, max(1, files // 2))


class BoundedProtocol(H11Protocol):
    """uvicorn's HTTP protocol with limits: by itself it keeps incomplete requests forever, and any number of them."""

    patience = PATIENCE
    most = most_connections()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._idle_since: Any = self
        self._watcher = self.loop.call_later(self.patience, self._watch)
        if len(self.connections) > self.most:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._watcher.cancel()
        super().connection_lost(exc)

    def _watch(self) -> None:
        """Close the connection if it has been idle since the last check."""
        working = self.cycle is not None and not self.cycle.response_complete
        idle = None if working else (self.cycle or self)
        if idle is not None and idle is self._idle_since:
            self.transport.abort()
            return
        self._idle_since = idle
        self._watcher = self.loop.call_later(self.patience, self._watch)


def own_names(host: str) -> frozenset[str]:
    """Names under which clients may address a server that listens at ``host``; numeric addresses are always allowed."""
    return frozenset(name.lower() for name in ("localhost", host, socket.gethostname(), socket.getfqdn()))


def refusal(request: Request, names: Collection[str]) -> str | None:
    """Why a request is refused; None if it is accepted."""
    if "origin" in request.headers:
        return "requests of web pages (with an Origin) are not answered."
    host = request.url.hostname or ""
    if host.lower() not in names and not _is_address(host):
        return f"this server is not called {host!r}; use its address, or start it with --host {host}."
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if request.method == "POST" and kind != "application/json":
        return f"the content type must be application/json, not {kind}."
    return None


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
