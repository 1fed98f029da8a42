"""Environments on OpenEnv's real server (openenv-core): the counting game, as a user would write it.

Runs in the environment of ``make test-backends-openenv``. The server runs in a separate process.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from selfimprove.core.errors import UserError
from selfimprove.envs.openenv import session
from selfimprove.envs.openenv.world import OpenEnvParams
from selfimprove.envs.registry import text_env
from selfimprove.training.processes import free_port
from tests.envs.contract import check_acted
from tests.support.openenv_server import walk

pytestmark = [pytest.mark.backend, pytest.mark.timeout(300)]

GAME = """
from openenv.core.env_server import Action, Environment, Observation, State, create_app
from pydantic import Field

ACTIONS = ("add one", "double", "triple")


class Word(Action):
    word: str = Field(max_length=100)


class Place(Observation):
    text: str
    legal: list[str]


class Counting(Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **more):
        self.goal, self.now = seed + 2, 0
        return self.told()

    def step(self, action, timeout_s=None, **more):
        now, self.now = self.now, -1  # an action that fails leaves a state that is none
        self.now = {"add one": now + 1, "double": now * 2, "triple": now * 3}[action.word]
        return self.told()

    @property
    def state(self):
        return State()

    def told(self):
        return Place(
            text=f"The goal is {self.goal}. You are at {self.now}.",
            legal=list(ACTIONS if self.now else ACTIONS[:1]),
            reward=float(self.now == self.goal),
            done=self.now >= self.goal,
        )


game = create_app(Counting, Word, Place, max_concurrent_envs=MOST)
connections = {"open": 0, "most": 0}


@game.get("/connections")
async def connected():
    return connections


async def app(scope, receive, send):
    session = scope["type"] == "websocket"
    connections["open"] += session
    connections["most"] = max(connections.values())
    try:
        await game(scope, receive, send)
    finally:
        connections["open"] -= session
"""
SESSIONS = 100
KEYS = {"action": "word", "field": "text", "listed": "legal", "tasks": 60}
FREE = {**KEYS, "listed": ""}


@contextmanager
def served(folder: Path, port: int = 0, sessions: int = SESSIONS) -> Iterator[str]:
    """A running server; yields its name in the form of ``env.name``."""
    (folder / "game.py").write_text(GAME.replace("MOST", str(sessions)), encoding="utf-8")
    port = port or free_port()
    command = [sys.executable, "-m", "uvicorn", "game:app", "--port", str(port), "--log-level", "warning"]
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env={**os.environ})
    try:
        for _ in range(600):
            assert process.poll() is None, (folder / "log").read_text()
            try:
                assert httpx.get(f"http://127.0.0.1:{port}/health", trust_env=False).json() == {"status": "healthy"}
                break
            except httpx.TransportError:
                time.sleep(0.1)
        yield f"openenv:http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def name(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(tmp_path_factory.mktemp("openenv")) as name:
        yield name


def section(name: str, **keys: Any) -> OpenEnvParams:
    made = text_env(**{"name": name, **KEYS, **keys})
    assert isinstance(made, OpenEnvParams)
    return made


def test_the_game_satisfies_the_environment_contract(name: str) -> None:
    made = section(name)
    check_acted(made.make(), made.make(), [0, 7, 30], actions=60)


def test_300_concurrent_episodes_share_the_60_sessions_of_a_server(tmp_path: Path) -> None:
    async def play(made: OpenEnvParams) -> list[list[Any]]:
        world = made.world()
        try:
            return await asyncio.gather(*(walk(world, i % 40 + 20, "add one", "double", "triple") for i in range(300)))
        finally:
            await world.close()

    with served(tmp_path, sessions=60) as name:
        told = asyncio.run(play(section(name, server_concurrency=60)))
        seen = httpx.get(f"{name.partition(':')[2]}/connections", trust_env=False).json()
    assert seen["most"] == 60, "connections that a full server refuses count, too"
    assert [one[3][0] for one in told] == [f"The goal is {i % 40 + 22}. You are at 6." for i in range(300)]


def test_any_text_is_accepted_and_actions_unknown_to_the_game_have_no_effect(name: str) -> None:
    made = section(name, **FREE)
    odd = ["sing", "\ud800 \x00", "x" * 500, '"}, {"word": "double"', ""]

    async def play() -> list[Any]:
        world = made.world()
        try:
            return await walk(world, 7, "add one", *odd, "triple", *odd, "triple")
        finally:
            await world.close()

    told = asyncio.run(play())
    done = [one for one in told[1:] if one[3]]
    assert [one[0].rpartition(" ")[2] for one in done] == ["1.", "3.", "9."]
    assert done[-1][1:3] == (1, True)
    assert {one for one in told[1:] if not one[3]} == {("Nothing happens.", 0, False, False)}


def test_a_model_can_write_the_action_as_json_with_field_names(name: str) -> None:
    made = section(name, **{**FREE, "action": "{json}"})

    async def play() -> list[Any]:
        world = made.world()
        try:
            odd = ['{"wrd": "double"}', '{"word": [1]}', "{}", "double", r'{"word": "\ud800"}']
            return await walk(world, 7, '{"word": "add one"}', *odd, '{"word": "triple"}')
        finally:
            await world.close()

    told = asyncio.run(play())
    assert [one[3] for one in told[1:]] == [True, *[False] * 5, True]
    assert told[-1][0] == "The goal is 9. You are at 3."


def test_an_episode_continues_after_the_server_is_restarted(tmp_path: Path) -> None:
    async def play() -> list[Any]:
        with served(tmp_path) as name:
            world = section(name).world()
            state, _ = await world.reset(7)
            state, _ = await world.step(state, "add one")
        with served(tmp_path, int(name.rpartition(":")[2])):
            state, _ = await world.step(state, "triple")
            _, step = await world.step(state, "triple")
            await world.close()
        return [step.observation, step.reward]

    assert asyncio.run(play()) == ["The goal is 9. You are at 9.", 1]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (
            {"action": "message"},
            "rejects an action with the fields message (word is missing; message is extra_forbidden)",
        ),
        ({"field": "message"}, "an observation has no message (it has text, legal); fix env.field"),
        ({"reset": {"seed": "one"}}, "reset of task 0 failed on the server (EXECUTION_ERROR: "),
    ],
)
def test_params_that_do_not_fit_the_server_are_reported_in_one_sentence(
    name: str, keys: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError) as refused:
        section(name, **keys).make()
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_full_server_is_reported_with_a_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "BACKOFF", 0.01)
    with (
        served(tmp_path, sessions=1) as name,
        pytest.raises(UserError, match=r"it is full: .*lower env\.server_concurr"),
    ):
        section(name, server_concurrency=2).make()
    with served(tmp_path, sessions=1) as name:
        env = section(name, server_concurrency=1).make()
        env.reset(7)
        assert [move.action for move in env.expert()] == ["add one", "triple", "triple"]
        with pytest.raises(UserError, match=r"it is full: .*; lower env\.server_concurrency"):
            section(name, called="another").make()
