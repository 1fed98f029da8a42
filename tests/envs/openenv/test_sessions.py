"""Sessions on an OpenEnv server: many at once, broken connections, a server that is unreachable or full."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from selfimprove.core.errors import UserError
from selfimprove.envs.interface import EnvError
from tests.support.openenv_server import (
    NINE,
    OpenEnvServer,
    played,
    section,
    walk,
)


def test_hundreds_of_sessions_play_concurrently_and_are_closed_with_the_world(server: OpenEnvServer) -> None:
    made = section(server, server_concurrency=300)

    async def play() -> list[list[Any]]:
        world = made.world()
        try:
            return await asyncio.gather(*(walk(world, i % 40 + 20, "add one", "double", "triple") for i in range(600)))
        finally:
            await world.close()

    told = asyncio.run(play())
    assert server.most == 300
    assert [one[3][0] for one in told] == [f"The goal is {i % 40 + 22}. You are at 6." for i in range(600)]
    asyncio.run(until(lambda: server.open == 0))


async def until(there: Callable[[], bool]) -> None:
    """Wait until the server has noticed an event."""
    async with asyncio.timeout(30):
        while not there():
            await asyncio.sleep(0.02)


def test_a_connection_that_breaks_during_an_episode_is_reopened_and_no_action_counts_twice(
    server: OpenEnvServer,
) -> None:
    answers = 0

    def cut(told: dict[str, Any], message: dict[str, Any]) -> dict[str, Any]:
        nonlocal answers
        answers += 1
        if answers % 5 == 0:
            raise OSError
        return told

    server.changes = cut
    made = section(server)
    for _ in range(4):
        assert played(made, 7, "add one", "triple", "triple") == NINE
    assert server.made > 4
    again = [[one["data"] for one in messages if one["type"] == "step"] for messages in server.seen]
    assert [{"word": "add one"}, {"word": "triple"}, {"word": "triple"}] in again
    assert all(len(steps) <= 3 for steps in again)  # an episode's actions are sent once per session


def test_an_episode_continues_after_its_server_was_restarted(server: OpenEnvServer) -> None:
    made = section(server)

    async def play() -> Any:
        world = made.world()
        state, _ = await world.reset(7)
        state, _ = await world.step(state, "add one")
        server.stop()
        server.start(server.port)
        state, _ = await world.step(state, "triple")
        after = await world.step(state, "triple")
        await world.close()
        return after[1].observation, after[1].reward

    assert asyncio.run(play()) == ("The goal is 9. You are at 9.", 1)


def test_an_unreachable_server_ends_the_episode_with_an_error_that_names_it(server: OpenEnvServer) -> None:
    made = section(server, retries=1)

    async def play() -> None:
        world = made.world()
        state, _ = await world.reset(7)
        server.stop()
        with pytest.raises(EnvError, match=rf"{server.name}: cannot connect: .*, 2 times"):
            await world.step(state, "add one")
        await world.close()

    asyncio.run(play())
    server.start(server.port)


def test_an_idle_session_answers_the_servers_pings(server: OpenEnvServer) -> None:
    made = section(server)

    async def play() -> int:
        world = made.world()
        await world.reset(7)
        server.ping()
        await until(lambda: server.pongs == server.open)
        await world.close()
        return server.pongs

    assert asyncio.run(play()) > 0


def test_a_full_server_is_reported_with_the_remedy(server: OpenEnvServer) -> None:
    made = section(server, server_concurrency=4)
    made.make()
    server.sessions = 2

    async def play() -> None:
        world = made.world()
        try:
            await asyncio.gather(*(walk(world, i, "add one") for i in range(8)))
        finally:
            await world.close()

    with pytest.raises(UserError, match=r"it is full: . of 2 sessions are taken; lower env\.server_concurrency"):
        asyncio.run(play())
    assert len(played(section(server, server_concurrency=2), 5, "add one")) == 2
