"""AgentGym's protocol over real sockets: our client and our server."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import pytest

from selfimprove.core.seeds import rng
from selfimprove.envs.interface import AgentEnv, EmbeddedWorld, Step, World
from selfimprove.envs.replay import ReplayWorld
from selfimprove.envs.textcraft.env import TextCraft
from tests.envs.remote.agentgym_servers import our_server
from tests.envs.remote.agentgym_worlds import Caller, Laboratory, caller, remote, run, textcraft, webshop


async def episodes(world: World, make_env: Callable[[], AgentEnv], tasks: Sequence[int]) -> list[Any]:
    """Play the expert's actions in each task, with side steps from every state that are then discarded."""

    async def play(task: int) -> list[Any]:
        here = make_env()  # used only for planning
        dice = rng("side steps", here.name, task)
        state, observation = await world.reset(task)
        assert observation == here.reset(task)
        seen: list[Any] = [observation]
        for _, action in here.expert():
            listed = here.valid_actions() or []
            odd_ones = ("sing a song\t\x07", "click[nowhere]", "click[search]")  # the last: listed by WebShop's server
            for odd in (dice.choice(listed), dice.choice(listed), *odd_ones):
                seen.append((await world.step(state, odd))[1])
            state, step = await world.step(state, action)
            seen.append(step)
            here.step(action)
        assert seen[-1].reward == 1.0
        assert seen[-1].done
        return seen

    return await asyncio.gather(*map(play, tasks))


def same_over_http(name: str, make_env: Callable[[], AgentEnv], tasks: Sequence[int]) -> ReplayWorld:
    """Check that embedded and remote episodes are equal in everything that the protocol carries."""

    async def both(world: World) -> list[Any]:
        try:
            return await episodes(world, make_env, tasks)
        finally:
            await world.close()

    def carried(seen: list[list[Any]]) -> list[list[Any]]:
        known = ("raw_score", "valid", "disaster")
        return [
            [s if isinstance(s, str) else (*s[:3], {key: s.info[key] for key in known}) for s in episode]
            for episode in seen
        ]

    with our_server(name, make_env) as url:
        world = remote(name, url)
        assert carried(run(both(world))) == carried(run(both(EmbeddedWorld(make_env()))))
        assert Caller(url).get("/list_envs") == [], "the client closes what it opened"
    return world


def test_textcraft_over_http_equals_the_embedded_environment() -> None:
    stats = same_over_http("textcraft", textcraft, [0, 200, 600]).stats
    assert stats.failures == stats.diverged == 0
    assert stats.resets >= 4
    assert stats.replayed > 0, "side steps were replayed"


def test_the_sciworld_dialect_over_http_equals_the_embedded_environment() -> None:
    same_over_http("sciworld", Laboratory, [0, 7, 29])


def test_webshop_over_http_equals_the_embedded_environment() -> None:
    same_over_http("webshop", webshop, [0, 222])


# Our server, as other clients see it


def test_the_textcraft_server_implements_agentgyms_protocol() -> None:
    env = textcraft()
    with caller("textcraft", textcraft) as server:
        assert server.get("/") == "This is environment TextCraft."
        made = server.post("/create", commands=None, goal=None, minecraft_dir="x/")
        assert made == {"id": 0, "observation": env.reset(0), "done": False, "reward": 0}
        assert server.raw("/create", b"")["id"] == 1, "an empty body is no reason to refuse"
        begun = server.post("/reset", id=0, data_idx=3)
        assert begun == {"id": 0, "observation": env.reset(3), "done": False, "reward": 0}
        lap = len(env.task_ids())
        assert server.post("/reset", id=0, data_idx=3 + lap) == begun, "data_idx counts round and round"
        assert server.get("/goal", id=0) == begun["observation"].split("Goal: craft ")[1].rstrip(".")
        commands = server.get("/commands", id=0)
        assert begun["observation"] == f"Crafting commands:\n{commands}\n\nGoal: craft {server.get('/goal', id=0)}."
        assert server.get("/valid_actions", id=0) == env.valid_actions()
        for _, action in env.expert():
            step = server.post("/step", id=0, action=action)
        assert step == {"observation": env.step(action).observation, "reward": 1, "done": True} or step["done"]
        assert (step["reward"], type(step["reward"])) == (1, int)
        assert server.get("/observation", id=0) == step["observation"]
        assert server.get("/detail", id=0) == {**step, "deleted": False}
        assert server.post("/close", id=0) is True
        assert server.get("/list_envs") == [1]


def test_the_sciworld_server_implements_agentgyms_protocol() -> None:
    with caller("sciworld", Laboratory) as server:
        assert server.get("/") == "This is environment ScienceWorld."
        assert server.raw("/create", b"") == {"id": 0}
        assert "reset it" in server.post("/step", id=0, action="focus on ice")["error"]
        begun = server.post("/reset", id=0, data_idx=9)
        assert begun == {
            "task_name": "boil",
            "var_num": 9,
            "task_description": "Your task is to melt ice.\nVariation 9.",
            "observation": "A table, after 0 moves.",
            "reward": 0,
            "score": 0,
            "deleted": False,
            "done": False,
        }
        ahead = server.post("/reset", id=0, data_idx=5)
        assert (ahead["score"], ahead["reward"]) == (8, 8), "the points of the beginning count once"
        assert server.post("/step", id=0, action="look")["reward"] == 0
        server.post("/reset", id=0, data_idx=9)
        step = server.post("/step", id=0, action="focus on ice")
        assert step == {"observation": "You do it: focus on ice", "reward": 33, "score": 33, "done": False}
        assert server.get("/look", id=0) == "A table, after 1 moves."
        assert server.get("/inventory", id=0).endswith("an orange")
        assert server.get("/valid_actions", id=0) == ["focus on ice", "focus on table", "heat ice"]
        assert server.get("/goals", id=0) == {"goals": "score 33"}
        assert server.get("/task_description", id=0) == {"task_description": begun["task_description"]}
        hint = {"possible_actions": ["focus on OBJ", "heat OBJ"], "possible_objects": ["ice", "table"]}
        assert server.get("/action_hint", id=0) == hint
        assert server.get("/observation", id=0) == step["observation"]
        assert server.get("/detail", id=0) == {**begun, **step}
        tree = {"name": "universe", "contents": {}}
        assert server.get("/object_tree", id=0) == {"object_tree": tree}
        assert server.get("/state", id=0) == {
            "observation": "A table, after 1 moves.",
            "inventory": server.get("/inventory", id=0),
            "task_description": begun["task_description"],
            "goal_progress": "score 33",
            **hint,
            "current_moves": 1,
            "environment_info": {**begun, **step},
        }
        seen = server.post("/step_visual", id=0, action="Thought: Action: no.\nAction: focus on ice</s>")
        assert {key: seen[key] for key in step} == {
            "observation": "You do it: focus on ice", "reward": 33, "score": 66, "done": False,
        }  # fmt: skip
        assert (seen["object_tree"], seen["moves"], seen["inventory"]) == (tree, 2, server.get("/inventory", id=0))
        assert seen["info"] == {
            "moves": 2, "score": 66, "reward": 33, "look": "A table, after 2 moves.", "inv": seen["inventory"],
            "taskDesc": begun["task_description"], "valid": ["focus on ice", "focus on table", "heat ice"],
            "variationIdx": 9, "taskName": "boil", "simplificationStr": "",
        }  # fmt: skip
        assert server.get("/detail", id=0) == {**begun, **{key: seen[key] for key in step}}, "without the pictures"
        fatal = server.post("/step", id=0, action="focus on table")
        assert (fatal["score"], fatal["reward"], fatal["done"]) == (-100, -166, True)
        finished = {"error": "The task with environment 0 has finished."}
        assert server.post("/step", id=0, action="heat ice") == server.get("/look", id=0) == finished
        assert server.post("/step_visual", id=0, action="heat ice") == server.get("/state", id=0) == finished
        assert server.post("/reset", id=0, data_idx=1)["done"] is False, "a reset begins anew"
        assert server.post("/close", id=0) is True


def test_the_webshop_server_implements_agentgyms_protocol() -> None:
    env = webshop()
    with caller("webshop", webshop) as server:
        assert server.get("/") == "ok"
        assert server.raw("/create", b"") == 0
        assert server.post("/create") == 1
        assert server.get("/list_envs") == [0, 1]
        page = env.reset(5)
        assert server.post("/reset", env_idx=1, session_id=5) == [page, None]
        assert server.get("/observation", env_idx=1) == page
        assert server.get("/instruction_text", env_idx=1) == env.instruction_text()
        assert server.get("/available_actions", env_idx=1) == {"has_search_bar": True, "clickables": ["search"]}
        for _, action in env.expert():
            step, mine = server.post("/step", env_idx=1, action=action), env.step(action)
        assert step == {"state": mine.info["final_page"], "reward": 1.0, "done": True, "info": None}
        assert "Your score" in step["state"], "other people's clients get the original's last page"
        drawn = server.post("/reset", env_idx=0, session_id=None)[0]
        assert server.get("/observation", env_idx=0) == drawn
        assert server.post("/close", env_idx=1) == {"closed": True}


@pytest.mark.parametrize(
    ("path", "content", "says"),
    [
        ("/step", b"{", "not JSON"),
        ("/step", b"[" * 100_000, "not JSON"),
        ("/step", b"[1]", "no JSON object"),
        ("/step", b'{"id": 0}', "action: Field required"),
        ("/step", b'{"id": 0, "action": 5}', "action: Input should be a valid string"),
        ("/step", b'{"id": "x", "action": ""}', "id: Input should be a valid integer"),
        ("/step", b'{"id": 99, "action": "look"}', "The id 99 is not valid."),
        ("/step", b'{"id": -1, "action": "look"}', "The id -1 is not valid."),
        ("/step", b'{"id": 0, "action": "' + b"x" * (1 << 20) + b'"}', "longer than 1048576 bytes"),
        ("/close", b"{}", "id: Field required"),
        ("/reset", b'{"id": 0, "data_idx": 1.5}', "data_idx: Input should be a valid integer"),
        ("/create", b"null", "no JSON object"),
        ("/close", b'{"id": 99}', "The id 99 is not valid."),
    ],
)
def test_a_bad_request_is_answered_with_status_200_and_an_error(path: str, content: bytes, says: str) -> None:
    with caller("textcraft", textcraft) as server:
        server.post("/create")
        assert says in server.raw(path, content)["error"]
        assert server.get("/observation", id="x")["error"].startswith("id: ")
        assert server.post("/step", id=0, action="inventory")["observation"].startswith("Inventory"), "still at work"


def test_errors_name_the_dialects_own_fields_and_tasks() -> None:
    with caller("webshop", webshop) as server:
        server.post("/create")
        assert server.post("/step", action="search[x]")["error"] == "env_idx: Field required."
        assert "no task 999999999" in server.post("/reset", env_idx=0, session_id=999_999_999)["error"]
        assert server.post("/close", env_idx=0) == {"closed": True}
        assert "has been deleted" in server.post("/close", env_idx=0)["error"]


def test_the_server_limits_its_environments_and_reclaims_idle_ones() -> None:
    now, made = [0.0], []

    def make_env() -> Laboratory:
        made.append(Laboratory())
        return made[-1]

    with caller("sciworld", make_env, environments=2, idle=100.0, clock=lambda: now[0]) as server:
        assert [server.post("/create")["id"] for _ in range(2)] == [0, 1]
        assert "all 2 environments are in use" in server.post("/create")["error"]
        now[0] = 60.0
        server.post("/reset", id=0, data_idx=1)
        now[0] = 120.0
        assert server.post("/create") == {"id": 2}, "number 1 was idle for 120 s"
        assert made[1].closed
        assert "has been deleted" in server.post("/reset", id=1, data_idx=1)["error"]
        assert "all 2" in server.post("/create")["error"]
        server.post("/close", id=2)
        assert made[2].closed
        assert server.post("/create") == {"id": 3}, "a number is never used again"
        assert server.get("/list_envs") == [0, 3]
    assert all(env.closed for env in made), "the server takes its environments with it"


def test_an_environment_that_fails_ends_only_one_call() -> None:
    class Frail(Laboratory):
        def step(self, action: str) -> Step:
            if action == "break":
                raise ZeroDivisionError("a fault")
            return super().step(action)

    with caller("sciworld", Frail) as server:
        server.post("/create")
        server.post("/reset", id=0)
        assert server.post("/step", id=0, action="break") == {"error": "ZeroDivisionError: a fault"}
        assert server.post("/step", id=0, action="heat ice")["score"] == 67


def test_a_call_queued_behind_the_closing_of_its_environment_is_refused() -> None:
    busy, go_on = threading.Event(), threading.Event()

    class Slow(Laboratory):
        def step(self, action: str) -> Step:
            busy.set()
            go_on.wait(10)
            assert not self.closed
            return super().step(action)

    async def work(url: str) -> list[Any]:
        async with httpx.AsyncClient(base_url=url, trust_env=False, verify=False) as client:
            await client.post("/create")
            await client.post("/reset", json={"id": 0})
            act = {"id": 0, "action": "heat ice"}
            calls = [asyncio.create_task(client.post("/step", json=act))]
            while not busy.is_set():
                await asyncio.sleep(0.01)
            for path in ("/close", "/step"):
                calls.append(asyncio.create_task(client.post(path, json=act)))
                await asyncio.sleep(0.1)
            go_on.set()
            return [(await call).json() for call in calls]

    with our_server("sciworld", Slow) as url:
        first, closed, late = run(work(url))
    assert (first["score"], closed) == (67, True)
    assert "has been deleted" in late["error"]


def test_many_episodes_share_few_environments() -> None:
    async def work() -> int:
        with our_server("textcraft", textcraft, environments=5) as url:
            world = remote("textcraft", url, concurrency=5)
            env = textcraft()
            steps = await asyncio.gather(*(one_expert(world, env, task) for task in range(0, 600, 40)))
            await world.close()
            assert all(step.reward == 1.0 for step in steps)
            return world.stats.failures

    async def one_expert(world: World, env: TextCraft, task: int) -> Step:
        env.reset(task)
        moves = env.expert()
        state, _ = await world.reset(task)
        for _, action in moves:
            state, step = await world.step(state, action)
        return step

    assert run(work()) == 0


def test_answers_are_json_that_other_clients_can_read() -> None:
    with our_server("textcraft", textcraft) as url, httpx.Client(base_url=url, trust_env=False, verify=False) as client:
        response = client.post("/create", json={})
        assert response.headers["content-type"] == "application/json"
        assert json.loads(response.content)["id"] == 0
        assert client.get("/nowhere").status_code == 404
        odd = client.post("/step", content=b'{"id": 0, "action": "\\ud800\\u0000"}')
        assert odd.json()["observation"] == "Could not execute \ud800\x00"
