"""An HTTP server on 127.0.0.1, of which a test writes the handler."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType


class Handler(BaseHTTPRequestHandler):
    """Base of handlers; prints nothing."""

    def respond(
        self, status: int, body: bytes, headers: Mapping[str, str] = MappingProxyType({}), *, cut: bool = False
    ) -> None:
        """Send a response; ``cut``: announce the full length, send half of the body and close the connection."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        self.close_connection |= cut

    def body(self) -> bytes:
        """The request's body."""
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def log_message(self, *_: object) -> None:
        """Print nothing."""


class Server(ThreadingHTTPServer):
    """Serves a handler in threads, at a free port."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, handler: type[Handler]) -> None:
        super().__init__(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server_port}"

    def start(self) -> None:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def stop(self) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, *_: object) -> None:
        """Ignore it: in some tests, a client stops waiting."""


@contextmanager
def serve(handler: type[Handler]) -> Iterator[str]:
    """Serve a handler; yields the address."""
    server = Server(handler)
    server.start()
    try:
        yield server.url
    finally:
        server.stop()
