"""Environments on an OpenEnv server, ``openenv:<address>``, with a test server that implements the protocol."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from selfimprove.core.seeds import rng
from selfimprove.envs.openenv.world import OpenEnvParams
from selfimprove.envs.registry import modules_of, text_env
from selfimprove.envs.replay import replay_counts
from selfimprove.envs.splits import HeldOut
from tests.envs.contract import check_acted
from tests.methods.cells import overlay, play_cell
from tests.pipeline.workbench import Forks
from tests.support.openenv_server import (
    ACTIONS,
    FREE,
    GAME,
    NINE,
    Counting,
    OpenEnvServer,
    played,
    section,
    walk,
)
from tests.support.repo_copy import ROOT


def test_an_episode_is_played_and_only_listed_actions_are_sent(server: OpenEnvServer) -> None:
    assert played(section(server), 7, "add one", "triple", "triple") == NINE
    told = played(section(server, called="counting"), 7, "sing", "double", "add one")
    assert told[1:3] == [("Nothing happens.", 0, False, False)] * 2  # "double" is not listed yet
    assert told[3] == NINE[1]
    sent = [message["data"]["word"] for messages in server.seen for message in messages if message["type"] == "step"]
    assert set(sent) <= set(ACTIONS)


def test_the_example_in_the_documentation_works(server: OpenEnvServer) -> None:
    page = (ROOT / "docs/environments.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```\n(agent_r:\n  env:\n    name: openenv:.*?)```", page, re.DOTALL)
    keys = YAML(typ="safe", pure=True).load(example)["agent_r"]["env"]
    made = text_env(**{**keys, "name": server.name})
    assert made.world_name == "counting"
    assert made.instruction().startswith("Reach the goal exactly.\nAnswer each time with a thought and one of these")
    env = made.make()
    check_acted(env, made.make(), [0, 7])


def test_the_world_and_the_environment_play_the_same_game_on_shared_sessions(server: OpenEnvServer) -> None:
    made = section(server, server_concurrency=1)
    env = made.make()
    assert [env.reset(7), *(env.step(action).observation for action in ("add one", "triple"))] == [
        NINE[0],
        NINE[1][0],
        NINE[2][0],
    ]
    assert played(made, 7, "add one", "triple", "triple") == NINE
    assert env.step("triple").reward == 1  # its own episode was not disturbed
    assert server.most == 1


def test_environments_of_two_servers_can_be_mixed(server: OpenEnvServer) -> None:
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


def test_earlier_states_stay_valid_and_a_tree_grows_over_few_sessions(server: OpenEnvServer) -> None:
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


def test_any_text_can_be_an_action_and_one_that_fails_on_the_server_does_nothing(server: OpenEnvServer) -> None:
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


def test_actions_are_sent_as_numbers_if_the_server_expects_numbers(server: OpenEnvServer) -> None:
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
def test_actions_are_json_if_the_model_names_the_fields(server: OpenEnvServer, action: Any, text: str) -> None:
    odd = [
        "add one",
        "[1, 2]",
        '{"word": NaN}',
        r'"\ud800"',
        r'{"word": "\ud800"}',
        '{"word": 1e999}',
        "[" * 5000,
        "[" * 980 + "]" * 980,
        '{"wrd": "double"}',
        "{}",
    ]
    told = played(section(server, {**FREE, "action": action}), 7, text.format("add one"), *odd, text.format("triple"))
    assert [one for one in told if one[0] != "Nothing happens."] == NINE[:3]
    assert len(told) == 13


@pytest.mark.parametrize(
    ("field", "seen"),
    [
        ("text", "The goal is 9. You are at 0."),
        ("place.path.-1", "0"),
        ("place", "now: 0\npath: [0, 0]"),
        ("", 'text: The goal is 9. You are at 0.\nlegal: ["add one"]\nplace: now: 0\npath: [0, 0]'),
    ],
)
def test_a_field_of_the_observation_or_all_of_it_is_shown(server: OpenEnvServer, field: str, seen: str) -> None:
    assert section(server, field=field).make().reset(7) == seen


def test_the_score_is_the_return_divided_by_success_return(server: OpenEnvServer) -> None:
    told = played(section(server, success_return=2.0), 7, "add one", "triple", "triple")
    assert [one[1] for one in told[1:]] == [0, 0, 0.5]


@pytest.mark.parametrize(
    ("score", "scores"), [("return", [0, 0, 1]), ("last", [0, 0, 1]), ("terminated", [0, 0, 1]), (1, [0, 0, 1])]
)
def test_rewards_are_converted_to_a_score(server: OpenEnvServer, score: Any, scores: list[float]) -> None:
    if score != "return":  # rewards that do not add up to a score
        server.changes = lambda told, message: {
            **told,
            "reward": told["reward"] or (-2 if score in (1, "terminated") else 0),
        }
    told = played(section(server, score=score), 7, "add one", "triple", "triple")
    assert [one[1] for one in told[1:]] == scores


def test_experts_are_found_by_search_or_read_from_a_file(server: OpenEnvServer, tmp_path: Path) -> None:
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
    assert told.expert() == []  # off the recorded path, and free text cannot be searched


def test_a_sum_of_rewards_that_rounds_to_one_is_success(server: OpenEnvServer) -> None:
    server.changes = lambda told, message: {**told, "reward": 0.1, "done": False}
    told = played(section(server), 58, *["add one"] * 10)
    assert [one[1] == 1 for one in told[1:]] == [False] * 9 + [True]


def test_a_stage_does_not_depend_on_the_servers_modules(server: OpenEnvServer) -> None:
    assert modules_of("agent_r", server.name) == [OpenEnvParams.__module__]


@pytest.mark.slow
def test_a_method_learns_from_a_file_of_experts_with_free_text_actions(
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
