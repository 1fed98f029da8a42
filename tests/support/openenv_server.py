"""A server for a counting game that speaks OpenEnv's protocol (openenv-core 0.3) and can be made to misbehave.

It runs in a thread of the test process, on its own port. ``tests/backends/test_openenv.py`` plays the same game on the
real package's server.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

from aiohttp import WSMsgType, web

from selfimprove.envs.interface import World
from selfimprove.envs.openenv.world import OpenEnvParams
from selfimprove.envs.registry import text_env

ACTIONS = ("add one", "double", "triple")
GAME: dict[str, Any] = {"action": "word", "field": "text", "listed": "legal", "tasks": 60, "actions": list(ACTIONS)}
"""Keys of an ``env`` section for this game."""
FREE = {**GAME, "listed": "", "actions": []}
"""The same game with arbitrary text as actions."""


class Counting:
    """The game: reach the task's goal exactly. An invalid action raises an error."""

    def __init__(self) -> None:
        self.goal, self.now = 0, 0

    def reset(self, seed: int = 0) -> dict[str, Any]:
        self.goal, self.now = seed + 2, 0
        return self._told(f"The goal is {self.goal}. You are at 0.")

    def step(self, word: str) -> dict[str, Any]:
        now, self.now = self.now, -1  # an invalid action leaves an invalid state
        self.now = {"add one": now + 1, "double": now * 2, "triple": now * 3}[word]
        return self._told(f"The goal is {self.goal}. You are at {self.now}.")

    def _told(self, text: str) -> dict[str, Any]:
        legal = list(ACTIONS if self.now else ACTIONS[:1])
        return {
            "observation": {"text": text, "legal": legal, "place": {"now": self.now, "path": [0, self.now]}},
            "reward": float(self.now == self.goal),
            "done": self.now >= self.goal,
        }


class Refusal(Exception):
    """An error that the server sends as its answer."""

    def __init__(self, code: str, said: str, **more: Any) -> None:
        super().__init__(said)
        self.told = {"type": "error", "data": {"message": said, "code": code, **more}}


class OpenEnvServer:
    """A server that records the messages it receives.

    Attributes:
        game: the game's class.
        changes: called with each answer of the game and the message; its result is sent instead: data, raw text, or
            nothing for a number of seconds (a float). A ``Refusal`` is sent; an ``OSError`` cuts the connection.
        sessions: maximum number of concurrent sessions.
        seen: the messages of every session, in order.
        open, most, made: number of sessions open now, open at once at most, and opened in total.
        pongs: number of answers to ``ping``.
    """

    def __init__(self) -> None:
        self.game = Counting
        self.changes: Callable[[dict[str, Any], dict[str, Any]], Any] = lambda told, message: told
        self.sessions = 1000
        self.seen: list[list[dict[str, Any]]] = []
        self.open = self.most = self.made = self.pongs = 0
        self._sockets: set[web.WebSocketResponse] = set()
        self._started = threading.Event()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._serve, daemon=True).start()
        assert self._started.wait(20)

    @property
    def name(self) -> str:
        """The server's name as a value of ``env.name``."""
        return f"openenv:http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        """Stop listening, and cut all connections."""
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(20)

    def start(self, port: int = 0) -> None:
        """Start listening again."""
        asyncio.run_coroutine_threadsafe(self._listen(port), self._loop).result(20)

    def ping(self) -> None:
        """Ping every session, like servers that close sessions which do not answer."""

        async def ping() -> None:
            for socket in self._sockets:
                await socket.ping()

        asyncio.run_coroutine_threadsafe(ping(), self._loop).result(20)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._listen(0))
        self._started.set()
        self._loop.run_forever()

    async def _listen(self, port: int) -> None:
        app = web.Application()
        app.router.add_get("/ws", self._session)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def _session(self, request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse(autoping=False)
        await socket.prepare(request)
        if self.open >= self.sessions:
            full = Refusal("CAPACITY_REACHED", f"{self.open} of {self.sessions} sessions are taken")
            await socket.send_str(json.dumps(full.told))
            await socket.close()
            return socket
        game, messages = self.game(), list[dict[str, Any]]()
        self.seen.append(messages)
        self._sockets.add(socket)
        self.made += 1
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            async for raw in socket:
                if raw.type is WSMsgType.PONG:
                    self.pongs += 1
                    continue
                message = json.loads(raw.data)
                json.dumps(message, ensure_ascii=False).encode()  # text that is not valid Unicode breaks a session
                messages.append(message)
                if message["type"] == "close":
                    break
                try:
                    answer = {"type": "observation", "data": self.changes(self._played(game, message), message)}
                except Refusal as refusal:
                    answer = refusal.told
                if isinstance(answer["data"], float):  # seconds without an answer
                    await asyncio.sleep(answer["data"])
                    continue
                await socket.send_str(answer["data"] if isinstance(answer["data"], str) else json.dumps(answer))
        except OSError:
            assert request.transport is not None
            request.transport.abort()
        finally:
            self.open -= 1
            self._sockets.discard(socket)
        return socket

    def _played(self, game: Any, message: dict[str, Any]) -> dict[str, Any]:
        data = message["data"]
        if message["type"] == "step" and (wrong := set(data) ^ {"word"}):
            errors = [
                {"type": "missing" if field == "word" else "extra_forbidden", "loc": [field]} for field in sorted(wrong)
            ]
            raise Refusal("VALIDATION_ERROR", "Invalid message", errors=errors)
        if message["type"] == "step" and len(str(data["word"])) > 100:
            errors = [{"type": "string_too_long", "loc": ["word"]}]
            raise Refusal("VALIDATION_ERROR", "Invalid message", errors=errors)
        try:
            told: dict[str, Any] = getattr(game, message["type"])(**data)
        except (KeyError, TypeError) as error:
            raise Refusal("EXECUTION_ERROR", str(error)) from None
        return told


@cache
def counting_server() -> OpenEnvServer:
    """A well-behaved server, shared by all tests of a process."""
    return OpenEnvServer()


def section(server: OpenEnvServer, keys: dict[str, Any] | None = None, **more: Any) -> OpenEnvParams:
    made = text_env(**{"name": server.name, **(GAME if keys is None else keys), **more})
    assert isinstance(made, OpenEnvParams)
    return made


async def walk(world: World, task: int, *actions: str) -> list[Any]:
    """Play an episode: the first observation, then each step's observation, reward, end and validity."""
    state, seen = await world.reset(task)
    told: list[Any] = [seen]
    for action in actions:
        state, step = await world.step(state, action)
        told.append((step.observation, step.reward, step.done, step.info["valid"]))
    return told


def played(section: OpenEnvParams, task: int, *actions: str) -> list[Any]:
    async def play() -> list[Any]:
        world = section.world()
        try:
            return await walk(world, task, *actions)
        finally:
            await world.close()

    return asyncio.run(play())


NINE = [
    "The goal is 9. You are at 0.",
    ("The goal is 9. You are at 1.", 0, False, True),
    ("The goal is 9. You are at 3.", 0, False, True),
    ("The goal is 9. You are at 9.", 1, True, True),
]
