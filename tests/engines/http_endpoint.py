"""A real HTTP server on 127.0.0.1: a test scripts its replies, one step per call; received calls are recorded."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.support.http_server import Handler, Server


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

        class Scripted(Handler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                headers = {k.lower(): v for k, v in self.headers.items()}
                seen = Seen(self.path, headers, json.loads(self.body()))
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
                self.respond(reply.status, reply.body, reply.headers, cut=reply.cut)

        self._server = Server(Scripted)
        self.start, self.stop = self._server.start, self._server.stop
        self.url = f"{self._server.url}/v1"


@contextmanager
def endpoint(*steps: Step, then: Step = echo) -> Iterator[Endpoint]:
    """Serve ``steps``, one per call in order of arrival, and ``then`` for all later calls."""
    server = Endpoint(list(steps), then)
    server.start()
    try:
        yield server
    finally:
        server.stop()
