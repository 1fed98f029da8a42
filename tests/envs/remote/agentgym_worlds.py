"""For the tests of AgentGym's protocol: environments, a world on a server, a client that sends arbitrary requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import httpx

from selfimprove.core.errors import UserError
from selfimprove.envs.interface import AgentEnv, Move, Step
from selfimprove.envs.params import TextParams
from selfimprove.envs.registry import named
from selfimprove.envs.replay import ReplayWorld
from selfimprove.envs.textcraft.env import TextCraft
from selfimprove.envs.textcraft.recipes import RecipeBook
from selfimprove.envs.webshop.env import WebShop
from tests.envs.remote.agentgym_servers import our_server


class Laboratory:
    """A miniature ScienceWorld with what our server requires: a score in percent and a fatal mistake.

    Task 5 begins with 8 points, as ScienceWorld's games in the room of the goal do.
    """

    name = "sciworld"
    instruction = "Melt the ice."

    def __init__(self) -> None:
        self.task, self.score, self.moves, self.begun_with, self.closed = 0, 0, 0, 0.0, False
        self.simulator = SimpleNamespace(
            description=lambda: f"Your task is to melt ice.\nVariation {self.task}.",
            templates=lambda: ["focus on OBJ", "heat OBJ"],
            objects=lambda: ["ice", "table"],
            goal_progress=lambda: f"score {self.score}",
            look=lambda: f"A table, after {self.moves} moves.",
            inventory=lambda: "In your inventory, you see:\n\tan orange",
            moves=lambda: self.moves,
            object_tree=lambda: {"name": "universe", "contents": {}},
        )

    def task_ids(self) -> Sequence[int]:
        return range(30)

    def reset(self, task_id: int) -> str:
        if task_id not in self.task_ids():
            raise UserError(f"sciworld has no task {task_id}; choose another.")
        self.task, self.score, self.moves = task_id, 8 if task_id == 5 else 0, 0
        self.begun_with = self.score / 100
        return f"{self.simulator.description()}\n{self.simulator.look()}"

    def step(self, action: str) -> Step:
        gain = {"focus on ice": 33, "heat ice": 67, "focus on table": -100 - self.score}
        said, valid = f"You do it: {action}", action in gain
        if valid:
            self.score, self.moves = self.score + gain[action], self.moves + 1
        else:
            said = "No known action matches that input."
        done = not 0 <= self.score < 100
        info = {"raw_score": self.score, "valid": valid, "disaster": self.score < 0}
        return Step(said, max(self.score, 0) / 100, done, info)

    def snapshot(self) -> Any:
        return self.task, self.score, self.moves

    def restore(self, snapshot: Any) -> None:
        self.task, self.score, self.moves = snapshot

    def valid_actions(self) -> list[str]:
        return ["focus on ice", "focus on table", "heat ice"]

    def expert(self) -> list[Move]:
        return [Move("Ice first.", "focus on ice"), Move("Now heat.", "heat ice")] if self.score == 0 else []

    def close(self) -> None:
        self.closed = True


def textcraft() -> TextCraft:
    return TextCraft(RecipeBook.load(), 42)


def webshop() -> WebShop:
    return WebShop(products=300)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 30))


def remote(name: str, url: str, concurrency: int = 3, timeout: float = 10.0) -> ReplayWorld:
    protocol = named(TextParams)[name].agentgym()
    assert protocol is not None
    world = protocol.remote_world(name, url, concurrency, timeout, "Play.", backoff=0.0)
    assert isinstance(world, ReplayWorld)
    return world


class Caller:
    """A client that sends arbitrary requests."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.http = httpx.Client(base_url=url, trust_env=False, verify=False)

    def post(self, path: str, **fields: Any) -> Any:
        return self._read(self.http.post(path, json=fields))

    def raw(self, path: str, content: bytes) -> Any:
        return self._read(self.http.post(path, content=content))

    def get(self, path: str, **query: Any) -> Any:
        return self._read(self.http.get(path, params=query))

    def _read(self, response: httpx.Response) -> Any:
        assert response.status_code == 200, response.text
        return response.json()


@contextmanager
def caller(name: str, make_env: Callable[[], AgentEnv], **options: Any) -> Iterator[Caller]:
    with our_server(name, make_env, **options) as url:
        client = Caller(url)
        try:
            yield client
        finally:
            client.http.close()
