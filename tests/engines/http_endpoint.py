"""A real HTTP server on 127.0.0.1: a test scripts its replies, one step per call; received calls are recorded."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Seen:
    """A received call."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


@dataclass
class Reply:
    """A reply. ``cut``: announce the full length, send half of the body and close the connection."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False


Step = Callable[[Seen], Reply]


def answer(*texts: str, finish: str | None = "stop", usage: dict[str, Any] | None = None) -> Reply:
    """A chat completion with these choices."""
    choices = [
        {"index": i, "message": {"role": "assistant", "content": text}, "finish_reason": finish}
        for i, text in enumerate(texts)
    ]
    return Reply(body=json.dumps({"object": "chat.completion", "choices": choices, "usage": usage}).encode())


def echo(seen: Seen) -> Reply:
    """Return the last message, once for each requested choice."""
    last = seen.body["messages"][-1]["content"]
    count = seen.body["n"]
    usage = {"prompt_tokens": 10, "completion_tokens": 3 * count, "prompt_tokens_details": {"cached_tokens": 4}}
    return answer(*(f"{last} #{i}" for i in range(count)), usage=usage)


class Endpoint:
    """``seen``: the calls in order of arrival; ``most_at_once``: the maximum number of concurrent calls."""

    def __init__(self, steps: list[Step], then: Step) -> None:
        self.seen: list[Seen] = []
        self.most_at_once = 0
        self._now = 0
        self._steps, self._then = list(steps), then
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["Content-Length"]))
                seen = Seen(self.path, {k.lower(): v for k, v in self.headers.items()}, json.loads(raw))
                with outer._lock:
                    outer.seen.append(seen)
                    outer._now += 1
                    outer.most_at_once = max(outer.most_at_once, outer._now)
                    step = outer._steps.pop(0) if outer._steps else outer._then
                try:
                    reply = step(seen)
                finally:
                    with outer._lock:
                        outer._now -= 1
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(reply.body)))
                self.end_headers()
                if reply.cut:
                    self.wfile.write(reply.body[: len(reply.body) // 2])
                    self.close_connection = True
                else:
                    self.wfile.write(reply.body)

            def log_message(self, *_: Any) -> None:
                """Print nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

            def handle_error(self, *_: Any) -> None:
                """Ignore it: in some tests, a client stops waiting."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def endpoint(*steps: Step, then: Step = echo) -> Iterator[Endpoint]:
    """Serve ``steps``, one per call in order of arrival, and ``then`` for all later calls."""
    server = Endpoint(list(steps), then)
    server.start()
    try:
        yield server
    finally:
        server.stop()
