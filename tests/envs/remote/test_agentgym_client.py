"""Our AgentGym client with servers that misbehave."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from selfimprove.core.errors import UserError
from selfimprove.envs.interface import EnvError, Step
from selfimprove.envs.replay import ReplayWorld
from tests.envs.remote.agentgym_servers import Hostile, Reply, hostile_server, our_server
from tests.envs.remote.agentgym_worlds import Caller, Laboratory, remote, run, textcraft, webshop


def script(**answers: Any) -> Callable[[str, dict[str, Any]], Reply]:
    """A TextCraft server that works correctly except for ``answers``: path -> a reply, or a function of the fields."""
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
    """Play the actions and return the last step. The world is closed in any case."""
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


def test_a_server_that_is_down_is_reported_in_one_sentence() -> None:
    with hostile_server(script()) as server:
        pass
    says = fails(remote("textcraft", server.url), error=UserError)
    assert says.startswith(f"env.server: nothing answers at {server.url} (cannot connect")
    assert "make serve" in says
    assert "null" in says


def test_a_lost_server_ends_episodes_but_not_the_stage_and_may_come_back() -> None:
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
            stranger, env = Caller(url), textcraft()  # another client, which now holds the ids 0 and 1
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


def test_a_slow_step_is_never_resent_to_the_same_environment() -> None:
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


def test_a_server_that_is_always_slow_ends_the_episode() -> None:
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
        (Reply(status=302, location="gateway:8443/step"), "a redirect to something that is no address"),
        (Reply(b"<html>"), "the answer is not JSON: <html>"),
        (Reply(b"[" * 100_000), "the answer is not JSON"),
        (Reply(b" " * (33 << 20)), "the answer is larger than 32 MiB"),
        (Reply({"observation": "half"}), "not this environment's protocol: field 'reward': Field required"),
        (Reply({"observation": 5, "reward": 0, "done": False}), "protocol: field 'observation': Input should be"),
        (
            Reply(b'{"observation": "", "reward": NaN, "done": false}'),
            "protocol: field 'reward': Input should be a finite",
        ),
        (Reply({"observation": "", "reward": 0, "done": "no"}), "protocol: field 'done': Input should be"),
        (Reply(["text", None]), "not this environment's protocol"),
        (Reply({"observation": "cut", "reward": 0, "done": False}, cut=True), "the connection broke"),
    ],
)
def test_a_failed_step_is_retried_once_on_a_fresh_environment_then_the_episode_ends(reply: Reply, says: str) -> None:
    with hostile_server(script(step=reply)) as server:
        assert says in fails(remote("textcraft", server.url))
        steps = [fields["id"] for call, fields in server.seen if call == "POST /step"]
        assert steps == [0, 1], "one try in each of two environments"
    with hostile_server(script(step=lambda fields: reply if fields["id"] == 0 else None)) as server:
        assert run(one_step(remote("textcraft", server.url), "look")).observation == "did look"


def test_a_server_that_forgets_the_environment_does_not_end_the_episode() -> None:
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


def test_creating_and_resetting_are_retried() -> None:
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


def test_a_reset_that_may_be_running_is_not_resent_to_the_same_environment() -> None:
    with hostile_server(script(reset=Reply({"observation": "x"}, cut=True))) as server:
        assert "the connection broke" in fails(remote("textcraft", server.url))
        assert [fields["id"] for call, fields in server.seen if call == "POST /reset"] == [0, 1]


@pytest.mark.parametrize(
    ("reply", "says"),
    [
        (Reply({"error": "no Java"}), "cannot create an environment (no Java)"),
        (Reply({"error": "all 2 environments are in use"}), "lower env.server_concurrency"),
        (Reply({"detail": "Not Found"}, status=404), "is not an AgentGym server (status 404 for /create)"),
    ],
)
def test_a_server_that_cannot_create_environments_is_reported_in_one_sentence(reply: Reply, says: str) -> None:
    with hostile_server(script(create=reply)) as server:
        assert says in fails(remote("textcraft", server.url), error=UserError)


def test_a_server_of_another_environment_is_detected() -> None:
    with our_server("webshop", webshop) as url:
        assert "not this environment's protocol" in fails(remote("textcraft", url))


@pytest.mark.parametrize("action", ["get 1 oak log", "Action: look", "\ud800 \x00\n\t “ü”", "", "x" * 10_000])
def test_the_bare_action_is_sent_verbatim(action: str) -> None:
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
def test_scores_are_normalised_and_negative_ones_are_disasters(
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


def test_the_first_observation_starts_with_the_task() -> None:
    with our_server("sciworld", Laboratory) as url:
        observation = run(remote("sciworld", url).reset(2))[1]
    assert observation == "Your task is to melt ice.\nVariation 2.\nA table, after 0 moves."


def test_an_older_webshop_server_without_close_that_prints_the_score_is_supported() -> None:
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
        long = "click" + "[" * 1_000_000  # parsed as in the embedded shop, not in quadratic time
        for action, valid in (
            ("click[red]", True), ("click[blue]", False), ("search[x]", True), ("sing", False), (long, False)
        ):  # fmt: skip
            step = (await world.step(state, action))[1]
            assert step.info["valid"] is valid, action[:20]
        step = (await world.step(state, "click[buy now]"))[1]
        assert (step.observation, step.reward, step.done) == ("Thank you [SEP] None", 0.5, True)
        await world.close()

    with hostile_server(play) as server:
        run(work(server))
        assert server.paths().count("POST /close") == 3


@pytest.mark.parametrize(
    "address",
    [
        "localhost:36001",
        "ftp://x",
        "http://",
        "http://me:secret@host",
        "http://host/?key=secret",
        "http://[::",
        "http://host:99999",
    ],
)
def test_an_invalid_address_is_refused_without_revealing_its_secrets(address: str) -> None:
    with pytest.raises(UserError, match=r"env\.server") as caught:
        remote("textcraft", address)
    assert "secret" not in str(caught.value)
