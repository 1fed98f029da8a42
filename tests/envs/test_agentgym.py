"""AgentGym's protocol over real sockets (Agent-R checklist rows 35 to 38): our client, our server, and hostile ones."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from selfimprove.envs.agent import AgentEnv, EmbeddedWorld, EnvError, Move, Step, World
from selfimprove.envs.agentgym_client import make_remote_world
from selfimprove.envs.replay import ReplayWorld
from selfimprove.envs.textcraft import TextCraft
from selfimprove.envs.textcraft_recipes import RecipeBook
from selfimprove.envs.webshop.env import WebShop
from selfimprove.errors import UserError
from selfimprove.seeds import rng
from tests.envs.agentgym_servers import Hostile, Reply, hostile_server, our_server


class Laboratory:
    """ScienceWorld in small, with what our server asks of it: a score in percent, and a mistake that is fatal."""

    name = "sciworld"
    instruction = "Melt the ice."

    def __init__(self) -> None:
        self.task, self.score, self.moves, self.closed = 0, 0, 0, False
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
        self.task, self.score, self.moves = task_id, 0, 0
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
    world = make_remote_world(name, url, concurrency, timeout, "Play.", backoff=0.0)
    assert isinstance(world, ReplayWorld)
    return world


async def episodes(world: World, make_env: Callable[[], AgentEnv], tasks: Sequence[int]) -> list[Any]:
    """The expert's way through each task, with side steps from every state that are then forgotten."""

    async def play(task: int) -> list[Any]:
        here = make_env()  # only plans
        dice = rng("side steps", here.name, task)
        state, observation = await world.reset(task)
        assert observation == here.reset(task)
        seen: list[Any] = [observation]
        for _, action in here.expert():
            listed = here.valid_actions() or []
            for odd in (dice.choice(listed), dice.choice(listed), "sing a song\t\x07", "click[nowhere]"):
                seen.append((await world.step(state, odd))[1])
            state, step = await world.step(state, action)
            seen.append(step)
            here.step(action)
        assert seen[-1].reward == 1.0
        assert seen[-1].done
        return seen

    return await asyncio.gather(*map(play, tasks))


def same_over_http(name: str, make_env: Callable[[], AgentEnv], tasks: Sequence[int]) -> ReplayWorld:
    """Embedded and remote episodes are equal, in all that the protocol carries."""

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


def test_agent_r_35_textcraft_over_http_is_the_embedded_one() -> None:
    stats = same_over_http("textcraft", textcraft, [0, 200, 600]).stats
    assert stats.failures == stats.diverged == 0
    assert stats.resets >= 4
    assert stats.replayed > 0, "side steps were replayed"


def test_agent_r_36_sciworld_dialect_over_http_is_the_embedded_one() -> None:
    same_over_http("sciworld", Laboratory, [0, 7, 29])


def test_agent_r_37_webshop_over_http_is_the_embedded_one() -> None:
    same_over_http("webshop", webshop, [0, 222])


# Our server, as other people's clients see it


class Caller:
    """A client that says what it likes."""

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


def test_agent_r_38_textcraft_server_speaks_the_table() -> None:
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


def test_agent_r_38_sciworld_server_speaks_the_table() -> None:
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


def test_agent_r_38_webshop_server_speaks_the_table() -> None:
    env = webshop()
    with caller("webshop", webshop) as server:
        assert server.get("/") == "ok"
        assert server.raw("/create", b"") == 0
        assert server.post("/create") == 1
        assert server.get("/list_envs") == [0, 1]
        assert server.post("/reset", env_idx=1, session_id=5) == [env.reset(5), None]
        assert server.get("/observation", env_idx=1) == env.observation()
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
def test_agent_r_38_a_bad_request_is_answered_200_with_an_error(path: str, content: bytes, says: str) -> None:
    with caller("textcraft", textcraft) as server:
        server.post("/create")
        assert says in server.raw(path, content)["error"]
        assert server.get("/observation", id="x")["error"].startswith("id: ")
        assert server.post("/step", id=0, action="inventory")["observation"].startswith("Inventory"), "still at work"


def test_agent_r_38_errors_name_the_dialects_own_fields_and_tasks() -> None:
    with caller("webshop", webshop) as server:
        server.post("/create")
        assert server.post("/step", action="search[x]")["error"] == "env_idx: Field required."
        assert "no task 999999999" in server.post("/reset", env_idx=0, session_id=999_999_999)["error"]
        assert server.post("/close", env_idx=0) == {"closed": True}
        assert "has been deleted" in server.post("/close", env_idx=0)["error"]


def test_agent_r_38_the_server_holds_a_bounded_number_and_takes_back_the_idle() -> None:
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


def test_agent_r_38_an_environment_that_fails_ends_one_call_only() -> None:
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


def test_agent_r_38_a_call_that_waited_for_a_closed_environment_is_refused() -> None:
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


# Our client, on servers that misbehave


def script(**answers: Any) -> Callable[[str, dict[str, Any]], Reply]:
    """A TextCraft server that is well but for ``answers``: path -> a reply, or a function of the fields."""
    count = iter(range(1000))

    def reply(call: str, fields: dict[str, Any]) -> Reply:
        path = call.split("/")[1].split("?")[0]
        if path in answers:
            answer = answers[path]
            answer = answer(fields) if callable(answer) else answer
            if answer is not None:
                return answer if isinstance(answer, Reply) else Reply(answer)
        if path == "create":
            return Reply({"id": next(count), "observation": "o", "done": False, "reward": 0})
        if path == "reset":
            return Reply({"id": fields["id"], "observation": f"task {fields['data_idx']}", "done": False, "reward": 0})
        return Reply({"observation": f"did {fields.get('action')}", "reward": 0, "done": False})

    return reply


async def one_step(world: ReplayWorld, *actions: str) -> Step:
    """Play; the last step. Closes the world, whatever happens."""
    try:
        state, _ = await world.reset(5)
        for action in actions:
            state, step = await world.step(state, action)
        return step
    finally:
        await world.close()


def fails(world: ReplayWorld, *actions: str, error: type[Exception] = EnvError) -> str:
    with pytest.raises(error) as caught:
        run(one_step(world, *(actions or ("look",))))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_agent_r_38_a_server_that_is_down_is_one_sentence() -> None:
    with hostile_server(script()) as server:
        pass
    says = fails(remote("textcraft", server.url), error=UserError)
    assert says.startswith(f"agent_r.env.server: nothing answers at {server.url} (cannot connect")
    assert "make serve" in says
    assert "null" in says


def test_agent_r_38_a_server_that_goes_away_ends_episodes_not_the_stage_and_may_come_back() -> None:
    async def work() -> None:
        with our_server("textcraft", textcraft) as url:
            world = remote("textcraft", url)
            state, _ = await world.reset(3)
            other, _ = await world.reset(4)
            state, first = await world.step(state, "inventory")
        with pytest.raises(EnvError, match="cannot connect"):
            await world.step(state, "inventory")
        port = int(url.rpartition(":")[2])
        with our_server("textcraft", textcraft, port=port):
            stranger, env = Caller(url), textcraft()  # who now holds the numbers 0 and 1
            env.reset(4)
            for number in (0, 1):
                stranger.post("/create")
                stranger.post("/reset", id=number, data_idx=4)
                stranger.post("/step", id=number, action=env.expert()[0].action)
            assert (await world.step(other, "inventory"))[1] == first, "not the stranger's inventory"
            assert (await world.step(state, "inventory"))[1] == first
            await world.close()
            assert stranger.get("/list_envs") == [0, 1], "nor did we close the stranger's"
            stranger.http.close()

    run(work())


def test_agent_r_38_a_slow_step_is_never_sent_again_to_the_same_environment() -> None:
    later = threading.Event()

    def slow_once(fields: dict[str, Any]) -> None:
        if fields["action"] == "b" and fields["id"] == 0:
            later.wait(10)

    with hostile_server(script(step=slow_once)) as server:
        world = remote("textcraft", server.url, concurrency=1, timeout=0.6)
        assert run(one_step(world, "a", "b")).observation == "did b"
        steps = [(fields["id"], fields["action"]) for call, fields in server.seen if call == "POST /step"]
        assert steps == [(0, "a"), (0, "b"), (1, "a"), (1, "b")]
        assert ("POST /close", {"id": 0}) in server.seen, "the environment is given back"
        later.set()
    assert world.stats.failures == 1


def test_agent_r_38_a_server_that_is_always_slow_ends_the_episode() -> None:
    later = threading.Event()
    with hostile_server(script(step=lambda fields: later.wait(10) and None)) as server:
        assert "no answer within 0.6 s" in fails(remote("textcraft", server.url, timeout=0.6))
        assert server.paths().count("POST /step") == 2
        later.set()


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (Reply({"error": "list index\nout of range"}), "the server says: list index out of range"),
        (Reply("the inside of a server", status=500), 'status 500: "the inside of a server"'),
        (Reply({"detail": "nope"}, status=422), "status 422"),
        (Reply(b"<html>"), "the answer is not JSON: <html>"),
        (Reply(b"[" * 100_000), "the answer is not JSON"),
        (Reply({"observation": "half"}), "not this environment's protocol: reward: Field required"),
        (Reply({"observation": 5, "reward": 0, "done": False}), "protocol: observation: Input should be"),
        (Reply(b'{"observation": "", "reward": NaN, "done": false}'), "protocol: reward: Input should be a finite"),
        (Reply({"observation": "", "reward": 0, "done": "no"}), "protocol: done: Input should be"),
        (Reply(["text", None]), "not this environment's protocol"),
        (Reply({"observation": "cut", "reward": 0, "done": False}, cut=True), "the connection broke"),
    ],
)
def test_agent_r_38_a_step_that_fails_is_taken_on_a_fresh_environment_and_then_ends_the_episode(
    reply: Reply, says: str
) -> None:
    with hostile_server(script(step=reply)) as server:
        assert says in fails(remote("textcraft", server.url))
        steps = [fields["id"] for call, fields in server.seen if call == "POST /step"]
        assert steps == [0, 1], "one try in each of two environments"
    with hostile_server(script(step=lambda fields: reply if fields["id"] == 0 else None)) as server:
        assert run(one_step(remote("textcraft", server.url), "look")).observation == "did look"


def test_agent_r_38_a_server_that_forgets_the_environment_does_not_end_the_episode() -> None:
    async def work() -> None:
        with our_server("webshop", webshop) as url:
            env, world = webshop(), remote("webshop", url, concurrency=1)
            env.reset(8)
            state, _ = await world.reset(8)
            for _, action in env.expert():
                state, step = await world.step(state, action)
                mine = env.step(action)
                assert tuple(step)[:3] == tuple(mine)[:3]
                async with httpx.AsyncClient(base_url=url, trust_env=False, verify=False) as client:
                    for number in (await client.get("/list_envs")).json():
                        await client.post("/close", json={"env_idx": number})
            assert step.reward == 1.0
            assert world.stats.failures == len(state.actions) - 1
            await world.close()

    run(work())


def test_agent_r_38_creating_and_resetting_are_tried_again() -> None:
    def shaky(times: int) -> Callable[[dict[str, Any]], Any]:
        left = [times]

        def answer(fields: dict[str, Any]) -> Any:
            left[0] -= 1
            return Reply("busy", status=503) if left[0] >= 0 else None

        return answer

    with hostile_server(script(create=shaky(3), reset=shaky(3))) as server:
        world = remote("textcraft", server.url)
        assert run(one_step(world, "look")).observation == "did look"
        assert world.stats.failures == 0
        assert server.paths() == ["POST /create"] * 4 + ["POST /reset"] * 4 + ["POST /step", "POST /close"]


def test_agent_r_38_a_reset_that_may_be_under_way_is_not_sent_again() -> None:
    with hostile_server(script(reset=Reply({"observation": "x"}, cut=True))) as server:
        assert "the connection broke" in fails(remote("textcraft", server.url))
        assert [fields["id"] for call, fields in server.seen if call == "POST /reset"] == [0, 1]


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (Reply({"error": "no Java"}), "makes no environment (no Java)"),
        (Reply({"error": "all 2 environments are in use"}), "lower agent_r.env.server_concurrency"),
        (Reply({"detail": "Not Found"}, status=404), "is no AgentGym server (status 404 for /create)"),
    ],
)
def test_agent_r_38_a_server_without_environments_is_one_sentence(reply: Reply, says: str) -> None:
    with hostile_server(script(create=reply)) as server:
        assert says in fails(remote("textcraft", server.url), error=UserError)


def test_agent_r_38_another_environments_server_is_noticed() -> None:
    with our_server("webshop", webshop) as url:
        assert "not this environment's protocol" in fails(remote("textcraft", url))


@pytest.mark.parametrize("action", ["get 1 oak log", "Action: look", "\ud800 \x00\n\t “ü”", "", "x" * 10_000])
def test_agent_r_38_the_bare_action_is_sent_as_it_is(action: str) -> None:
    with hostile_server(script(step={"observation": "\ud800", "reward": 0, "done": False})) as server:
        step = run(one_step(remote("textcraft", server.url), action))
        assert [fields["action"] for call, fields in server.seen if call == "POST /step"] == [action]
        step.observation.encode("utf-8")


@pytest.mark.parametrize(
    ("name", "raw", "reward", "disaster"),
    [
        ("textcraft", 1, 1.0, False),
        ("sciworld", 33, 0.33, False),
        ("sciworld", 100, 1.0, False),
        ("sciworld", -100, 0.0, True),
        ("webshop", 0.75, 0.75, False),
        ("webshop", 1.5, 1.0, False),
        ("webshop", -1, 0.0, True),
    ],
)
def test_agent_r_08_38_scores_are_normalised_and_negative_ones_are_disasters(
    name: str, raw: float, reward: float, disaster: bool
) -> None:
    def play(call: str, fields: dict[str, Any]) -> Reply:
        if call == "POST /create":
            return Reply(3 if name == "webshop" else {"id": 3})
        if call == "POST /reset":
            text = {"observation": "o", "task_description": "t"}
            return Reply(["o", None] if name == "webshop" else text)
        step = {"observation": "did", "state": "did", "done": False, "reward": raw, "score": raw}
        return Reply({**step, "reward": 7} if name == "sciworld" else step)

    with hostile_server(play) as server:
        step = run(one_step(remote(name, server.url), "act"))
    assert (step.reward, step.done, step.info["raw_score"], step.info["disaster"]) == (reward, disaster, raw, disaster)


def test_agent_r_36_the_first_observation_opens_with_the_task() -> None:
    with our_server("sciworld", Laboratory) as url:
        observation = run(remote("sciworld", url).reset(2))[1]
    assert observation == "Your task is to melt ice.\nVariation 2.\nA table, after 0 moves."


def test_agent_r_37_an_older_webshop_has_no_close_and_prints_the_score() -> None:
    def play(call: str, fields: dict[str, Any]) -> Reply:
        if call == "POST /create":
            return Reply(48_950_076)
        if call == "POST /reset":
            assert fields == {"env_idx": 48_950_076, "session_id": 5}
            return Reply(["page", None])
        if call == "POST /step":
            last = "Thank you [SEP] None [SEP] Reward [SEP] Your score (min 0.0, max 1.0) [SEP] 0.5 [SEP] Details"
            done = fields["action"] == "click[buy now]"
            return Reply({"state": last if done else "page", "reward": 0.5 * done, "done": done, "info": None})
        if call.startswith("GET /available_actions"):
            assert call.endswith("?env_idx=48950076")
            return Reply({"has_search_bar": False, "clickables": ["Red", "buy now"]})
        return Reply({"detail": "Not Found"}, status=404)

    async def work(server: Hostile) -> None:
        world = remote("webshop", server.url)
        state, _ = await world.reset(5)
        for action, valid in (("click[red]", True), ("click[blue]", False), ("search[x]", True), ("sing", False)):
            step = (await world.step(state, action))[1]
            assert step.info["valid"] is valid, action
        step = (await world.step(state, "click[buy now]"))[1]
        assert (step.observation, step.reward, step.done) == ("Thank you [SEP] None", 0.5, True)
        await world.close()

    with hostile_server(play) as server:
        run(work(server))
        assert server.paths().count("POST /close") == 3


@pytest.mark.parametrize(
    "address",
    ["localhost:36001", "ftp://x", "http://", "http://me:secret@host", "http://host/?key=secret", "http://[::"],
)
def test_agent_r_38_an_address_that_is_none_is_refused_and_keeps_its_secrets(address: str) -> None:
    with pytest.raises(UserError, match=r"agent_r\.env\.server") as caught:
        remote("textcraft", address)
    assert "secret" not in str(caught.value)


def test_agent_r_38_many_episodes_share_few_environments() -> None:
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


def test_agent_r_38_answers_are_json_that_others_read() -> None:
    with our_server("textcraft", textcraft) as url, httpx.Client(base_url=url, trust_env=False, verify=False) as client:
        response = client.post("/create", json={})
        assert response.headers["content-type"] == "application/json"
        assert json.loads(response.content)["id"] == 0
        assert client.get("/nowhere").status_code == 404
        odd = client.post("/step", content=b'{"id": 0, "action": "\\ud800\\u0000"}')
        assert odd.json()["observation"] == "Could not execute \ud800\x00"
