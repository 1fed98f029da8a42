"""Environments on an OpenEnv server, played as ``openenv:<address>``, on a server that speaks the protocol."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from selfimprove.core.errors import UserError
from selfimprove.core.seeds import rng
from selfimprove.envs.interface import EnvError, World
from selfimprove.envs.openenv import session
from selfimprove.envs.openenv.world import OpenEnvParams
from selfimprove.envs.registry import listed_env, modules_of, text_env
from selfimprove.envs.replay import replay_counts
from selfimprove.envs.splits import HeldOut
from tests.envs.contract import check_acted
from tests.methods.cells import overlay, play_cell
from tests.pipeline.workbench import Forks, copy_code, write_params
from tests.support.openenv_server import ACTIONS, GAME, Counting, OpenEnvServer, Refusal
from tests.support.repo_copy import ROOT

FREE = {**GAME, "listed": "", "actions": []}
"""The game with any text for an action."""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are made again at once."""
    monkeypatch.setattr(session, "BACKOFF", 0.01)


@pytest.fixture
def server() -> Iterator[OpenEnvServer]:
    """One of the test's own."""
    server = OpenEnvServer()
    yield server
    server.stop()


def section(server: OpenEnvServer, keys: dict[str, Any] | None = None, **more: Any) -> OpenEnvParams:
    made = text_env(**{"name": server.name, **(GAME if keys is None else keys), **more})
    assert isinstance(made, OpenEnvParams)
    return made


async def walk(world: World, task: int, *actions: str) -> list[Any]:
    """An episode: what was seen, and each step's score, end and validity."""
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


def test_an_episode_is_played_and_only_what_is_listed_is_sent(server: OpenEnvServer) -> None:
    assert played(section(server), 7, "add one", "triple", "triple") == NINE
    told = played(section(server, called="counting"), 7, "sing", "double", "add one")
    assert told[1:3] == [("Nothing happens.", 0, False, False)] * 2  # nothing can be doubled yet
    assert told[3] == NINE[1]
    sent = [message["data"]["word"] for messages in server.seen for message in messages if message["type"] == "step"]
    assert set(sent) <= set(ACTIONS)


def test_the_example_of_the_page_is_played(server: OpenEnvServer) -> None:
    page = (ROOT / "docs/environments.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```\n(agent_r:\n  env:\n    name: openenv:.*?)```", page, re.DOTALL)
    keys = YAML(typ="safe", pure=True).load(example)["agent_r"]["env"]
    made = text_env(**{**keys, "name": server.name})
    assert made.world_name == "counting"
    assert made.instruction().startswith("Reach the goal exactly.\nAnswer each time with a thought and one of these")
    env = made.make()
    check_acted(env, made.make(), [0, 7])


def test_a_world_and_the_environment_itself_are_one_game_on_the_same_sessions(server: OpenEnvServer) -> None:
    made = section(server, server_concurrency=1)
    env = made.make()
    assert [env.reset(7), *(env.step(action).observation for action in ("add one", "triple"))] == [
        NINE[0],
        NINE[1][0],
        NINE[2][0],
    ]
    assert played(made, 7, "add one", "triple", "triple") == NINE
    assert env.step("triple").reward == 1  # its own episode went on meanwhile
    assert server.most == 1


def test_it_is_part_of_a_mixture_beside_another_server_s(server: OpenEnvServer) -> None:
    second = OpenEnvServer()
    second.changes = lambda told, message: {**told, "observation": {**told["observation"], "text": "elsewhere"}}
    env = {
        "name": "mixture",
        "parts": [{"name": server.name, **GAME}, {"name": second.name, "called": "other", **GAME}],
    }
    made = text_env(**env)
    assert made.world_name == "openenv+other"

    async def play() -> list[Any]:
        world = made.world()
        try:
            return [await walk(world, 2 * 7 + k, "add one") for k in range(2)]
        finally:
            await world.close()

    told = asyncio.run(play())
    assert [one[1][0] for one in told] == ["The goal is 9. You are at 1.", "elsewhere"]
    mixed = made.make()
    assert [mixed.reset(task).rpartition("\n\n")[2] for task in (14, 15)] == [NINE[0], "elsewhere"]
    second.stop()


def test_old_states_stay_and_a_tree_grows_over_few_sessions(server: OpenEnvServer) -> None:
    made = section(server, server_concurrency=3)

    async def grow() -> tuple[list[Any], dict[str, float]]:
        world, draw = made.world(), rng("tree")
        states = [(await world.reset(40))[0]]
        seen = []
        for _ in range(12):
            state = draw.choice([one for one in states if not one.done])
            grown = await asyncio.gather(*(world.step(state, action) for action in ACTIONS))
            seen.append((state.actions, [step.observation for _, step in grown]))
            states += [after for after, _ in grown]
        counts = replay_counts(world)
        await world.close()
        return seen, counts

    seen, counts = asyncio.run(grow())
    for path, observations in seen:
        for action, observation in zip(ACTIONS, observations, strict=True):
            assert played(made, 40, *path, action)[-1][0] == observation
    assert server.most <= 3
    assert counts["world_steps"] >= 36


def test_hundreds_of_sessions_play_at_once_and_end_with_the_world(server: OpenEnvServer) -> None:
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
    """Wait for what the server is about to notice."""
    async with asyncio.timeout(30):
        while not there():
            await asyncio.sleep(0.02)


def test_a_connection_that_breaks_in_an_episode_is_made_again_and_no_action_counts_twice(
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
    assert all(len(steps) <= 3 for steps in again)  # a session is sent an episode's actions once


def test_a_server_that_was_restarted_in_an_episode_is_found_again(server: OpenEnvServer) -> None:
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


def test_a_server_that_stays_away_ends_the_episode_and_names_itself(server: OpenEnvServer) -> None:
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


def test_an_idle_session_answers_the_server_s_pings(server: OpenEnvServer) -> None:
    made = section(server)

    async def play() -> int:
        world = made.world()
        await world.reset(7)
        server.ping()
        await until(lambda: server.pongs == server.open)
        await world.close()
        return server.pongs

    assert asyncio.run(play()) > 0


def test_any_text_is_an_action_and_one_on_which_the_server_fails_does_nothing(server: OpenEnvServer) -> None:
    made = section(server, FREE)
    odd = ["sing", "\ud800 \x00", "x" * 500, '"}, {"word": "double"', ""]
    told = played(made, 7, "add one", *odd, "triple", *odd, "triple")
    assert [one for one in told if one[0] != "Nothing happens."] == NINE
    assert {one[1:] for one in told if one[0] == "Nothing happens."} == {(0, False, False)}
    sent = [message["data"] for messages in server.seen for message in messages if message["type"] == "step"]
    assert {tuple(fields) for fields in sent} == {("word",)}
    env = made.make()
    env.reset(7)
    assert (env.valid_actions(), env.expert()) == (None, [])


def test_actions_are_numbered_where_the_server_wants_numbers(server: OpenEnvServer) -> None:
    class Numbered(Counting):
        def step(self, word: int) -> dict[str, Any]:  # type: ignore[override]
            told = super().step(ACTIONS[word])
            told["observation"]["legal"] = [0, 1] if self.now else [0]
            return told

        def reset(self, seed: int = 0) -> dict[str, Any]:
            return super().reset(seed) | {"observation": {"text": "go", "legal": [0]}}

    server.game = Numbered
    template = {"action": {"word": "{number}"}}
    named = section(server, **template).make()
    named.reset(0)
    assert named.valid_actions() == ["add one"]
    assert named.step("add one").info["valid"] is True
    assert named.valid_actions() == ["add one", "double"]
    numbered = section(server, actions=[], **template).make()
    numbered.reset(0)
    assert numbered.valid_actions() == ["0"]
    assert numbered.step("0").info["valid"] is True
    free = section(server, actions=[], listed="", **template).make()
    free.reset(0)
    assert [free.step(action).info["valid"] for action in ("add one", "0")] == [False, True]


@pytest.mark.parametrize(
    ("action", "text"), [("{json}", '{{"word": "{}"}}'), ({"word": "{json}"}, '"{}"')], ids=["all fields", "one field"]
)
def test_actions_are_json_where_the_model_is_to_name_fields(server: OpenEnvServer, action: Any, text: str) -> None:
    odd = [
        "add one",
        "[1, 2]",
        '{"word": NaN}',
        r'"\ud800"',
        r'{"word": "\ud800"}',
        "[" * 5000,
        '{"wrd": "double"}',
        "{}",
    ]
    told = played(section(server, {**FREE, "action": action}), 7, text.format("add one"), *odd, text.format("triple"))
    assert [one for one in told if one[0] != "Nothing happens."] == NINE[:3]
    assert len(told) == 11


@pytest.mark.parametrize(
    ("field", "seen"),
    [
        ("text", "The goal is 9. You are at 0."),
        ("place.path.-1", "0"),
        ("place", "now: 0\npath: [0, 0]"),
        ("", 'text: The goal is 9. You are at 0.\nlegal: ["add one"]\nplace: now: 0\npath: [0, 0]'),
    ],
)
def test_what_is_shown_is_a_field_of_the_observation_or_all_of_it(server: OpenEnvServer, field: str, seen: str) -> None:
    assert section(server, field=field).make().reset(7) == seen


@pytest.mark.parametrize(
    ("score", "scores"), [("return", [0, 0, 1]), ("last", [0, 0, 1]), ("terminated", [0, 0, 1]), (1, [0, 0, 1])]
)
def test_rewards_become_a_score(server: OpenEnvServer, score: Any, scores: list[float]) -> None:
    if score != "return":  # rewards that do not add up to a score
        server.changes = lambda told, message: {
            **told,
            "reward": told["reward"] or (-2 if score in (1, "terminated") else 0),
        }
    told = played(section(server, score=score), 7, "add one", "triple", "triple")
    assert [one[1] for one in told[1:]] == scores


def test_experts_are_searched_and_an_own_file_says_more(server: OpenEnvServer, tmp_path: Path) -> None:
    env = section(server).make()
    env.reset(7)
    assert [move.action for move in env.expert()] == ["add one", "triple", "triple"]
    env.step("add one")
    env.step("double")
    assert [move.action for move in env.expert()] == ["add one", "triple"]
    file = tmp_path / "ways.jsonl"
    moves = [{"thought": f"I {word}.", "action": word} for word in ("add one", "triple", "triple")]
    file.write_text(json.dumps({"task": 7, "moves": moves}) + "\n")
    told = section(server, FREE, experts=str(file)).make()
    tasks = told.task_ids()
    assert isinstance(tasks, HeldOut)
    assert tasks.of["train"] == [7]
    assert sorted(tasks) == list(range(60))
    told.reset(7)
    assert [move.thought for move in told.expert()] == ["I add one.", "I triple.", "I triple."]
    told.step("add one")
    assert [told.step(move.action).reward for move in told.expert()] == [0, 1]
    told.reset(7)
    told.step("add one")
    told.step("add one")
    assert told.expert() == []  # off the way, and nothing to search


def test_a_sum_of_rewards_that_rounds_to_one_is_success(server: OpenEnvServer) -> None:
    server.changes = lambda told, message: {**told, "reward": 0.1, "done": False}
    told = played(section(server), 58, *["add one"] * 10)
    assert [one[1] == 1 for one in told[1:]] == [False] * 9 + [True]


def nested(depth: int) -> Any:
    return {"in": nested(depth - 1)} if depth else "text"


def misbehave(told: Any = None, *, kind: str = "", code: str = "", **data: Any) -> Any:
    """A change of the answers to messages of a kind (all, if none is given)."""

    def change(given: dict[str, Any], message: dict[str, Any]) -> Any:
        if kind and message["type"] != kind:
            return given
        if code:
            raise Refusal(code, "the game\n\x1b[2Jis broken")
        return told if told is not None else {**given, **data}

    return change


@pytest.mark.parametrize(
    ("changes", "keys", "said"),
    [
        (None, {"field": "txt"}, "an observation has no txt (there is text, legal, place); fix env.field"),
        (misbehave(observation={"a\nb": 1}), {}, "an observation has no text (there is a b); fix env.field"),
        (None, {"field": "text.here"}, "an observation has no text.here"),
        (None, {"listed": "text"}, "text lists no actions: The goal is 2. You are at 0.; fix env.listed."),
        (None, {"action": "wrd"}, "takes no action with the fields wrd (word is missing; wrd is extra_forbidden); set"),
        (misbehave(kind="reset", code="EXECUTION_ERROR"), {}, "reset of task 0 failed on the server (EXECUTION_ERROR"),
        (misbehave(kind="step", code="EXECUTION_ERROR"), {}, "action 'add one' failed on the server (EXECUTION_ERROR:"),
        (misbehave(code="FACTORY_ERROR"), {}, "failed on the server (FACTORY_ERROR: the game [2Jis broken)"),
        (misbehave(kind="step", reward=-1.0), {}, "in task 0 the rewards add up to -1, and a score lies in [0, 1]"),
        (misbehave(kind="step", reward=7), {"score": "last"}, "in task 0 a reward is 7, and a score lies in [0, 1]"),
        (misbehave(kind="step", reward=float("nan")), {}, "the answer to step is not OpenEnv's (reward: "),
        (misbehave(reward="1"), {}, "the answer to reset is not OpenEnv's (reward"),
        (misbehave(observation="text"), {}, "the answer to reset is not OpenEnv's (observation: "),
        (misbehave("no JSON"), {}, "the answer to reset is not OpenEnv's: no JSON"),
        (misbehave("[" * 100_000), {}, "the answer to reset is not OpenEnv's: [[["),
        (misbehave("x" * 2000), {"max_message": 1000}, "the answer to reset is longer than 1000 bytes; raise env.max_"),
        (misbehave(observation=nested(600)), {"field": "", "listed": ""}, "an observation is nested too deeply; name"),
        (misbehave(30.0), {"server_timeout": 1}, "no answer to reset within 1 s"),
        (misbehave(kind="reset", done=True), {}, "task 0 is over as it begins; fix env.reset"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(server: OpenEnvServer, changes: Any, keys: dict[str, Any], said: str) -> None:
    server.changes = changes or server.changes
    with pytest.raises(UserError) as refused:
        section(server, **keys).make()
    assert said in str(refused.value)
    assert str(refused.value).isprintable()


def test_a_reset_that_depends_on_more_than_the_task_is_refused(server: OpenEnvServer) -> None:
    server.changes = lambda told, message: {**told, "observation": {**told["observation"], "text": str(server.made)}}
    with pytest.raises(UserError, match=r"task 0 began with '\d' and then with '\d'; reset has to depend on nothing"):
        section(server).world()


def test_a_server_that_is_full_says_so_and_what_to_do(server: OpenEnvServer) -> None:
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


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"name": "openenv:localhost:8000"}, "openenv: is followed by an address like http://127.0.0.1:8000"),
        ({"name": "openenv:http://me:secret@127.0.0.1:8000"}, "openenv: is followed by an address like http://127.0.0"),
        ({"server": "http://127.0.0.1:9"}, "server: the address stands in name; set null"),
        ({"actions": ["up", "up"]}, "actions: an action stands there twice; name each once"),
        (
            {"action": {"word": "up"}},
            "action: no field is {action}, {number} or {json}; say where the action's text goes",
        ),
        ({"score": "best"}, "score"),
        ({"feild": "text"}, "feild: unknown key; remove it or fix its name"),
    ],
)
def test_params_that_do_not_fit_are_refused_before_anything_is_sent(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as refused:
        text_env(**{"name": "openenv:http://127.0.0.1:9", **keys})
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"task": 60, "moves": []}, "line 1: 'task' must be a number below env.tasks (60)"),
        ({"task": 3, "moves": []}, "line 1: 'moves' must be a list of objects with texts 'thought' and 'action'"),
        ({"task": 3, "moves": [{"action": "add one"}]}, "line 1: 'moves' must be"),
    ],
)
def test_a_file_of_experts_is_read_with_care(
    server: OpenEnvServer, tmp_path: Path, row: dict[str, Any], said: str
) -> None:
    file = tmp_path / "ways.jsonl"
    file.write_text(json.dumps(row) + "\n")
    with pytest.raises(UserError) as refused:
        section(server, experts=str(file)).make()
    assert said in str(refused.value)


def test_labels_need_actions_that_are_listed(server: OpenEnvServer) -> None:
    env = listed_env(name=server.name, **FREE).make()
    with pytest.raises(UserError, match="openenv does not list its actions, so that they can't get labels"):
        env.reset(0)


def test_a_stage_depends_on_no_module_of_the_server_s(server: OpenEnvServer) -> None:
    assert modules_of("agent_r", server.name) == [OpenEnvParams.__module__]


def test_a_method_learns_from_a_file_of_experts_where_any_text_is_an_action(
    forks: Forks, tmp_path: Path, server: OpenEnvServer
) -> None:
    file = tmp_path / "ways.jsonl"
    ways = [(task, ["add one"] * (task + 2)) for task in range(12)]
    rows = [{"task": task, "moves": [{"thought": "I count.", "action": one} for one in way]} for task, way in ways]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = play_cell(forks, tmp_path, "spin", overlay("spin", {**FREE, "name": server.name, "experts": str(file)}))
    assert summary["order"] == ["base", "iter0"]
    experts = (tmp_path / "data/spin/experts.jsonl").read_text()
    assert experts.count("I count.") >= 8
    for path, tasks in (("data/spin/experts.jsonl", range(12)), ("results/spin/base/episodes.jsonl", range(12, 60))):
        asked = {int(found) for found in re.findall(r"openenv-(\d+)", (tmp_path / path).read_text())}
        assert asked
        assert asked <= set(tasks)


@pytest.mark.parametrize(
    ("listens", "said"),
    [
        (False, "nothing answers at openenv:http://127.0.0.1:9 (cannot connect: "),
        (True, "is no OpenEnv server (status 404 for /ws); fix the address in env.name."),
    ],
)
def test_a_stage_that_finds_no_server_ends_with_a_sentence(
    forks: Forks, tmp_path: Path, server: OpenEnvServer, listens: bool, said: str
) -> None:
    name = f"{server.name}/other" if listens else "openenv:http://127.0.0.1:9"
    copy_code(tmp_path)
    write_params(tmp_path, overlay("agent_r", {**GAME, "name": name}))
    ran = forks.run(tmp_path, "agent_r.data", "")
    assert ran.code == 2
    assert said in ran.stderr
    assert "Traceback" not in ran.stderr
