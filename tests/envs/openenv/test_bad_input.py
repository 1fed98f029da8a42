"""Errors in an OpenEnv server, in its answers or in ``env`` are reported in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from selfimprove.core.errors import UserError
from selfimprove.envs.registry import listed_env, text_env
from tests.methods.cells import overlay
from tests.pipeline.workbench import Forks, copy_code, write_params
from tests.support.openenv_server import (
    FREE,
    GAME,
    OpenEnvServer,
    Refusal,
    section,
)


def nested(depth: int) -> Any:
    return {"in": nested(depth - 1)} if depth else "text"


def misbehave(told: Any = None, *, kind: str = "", code: str = "", **data: Any) -> Any:
    """A change to the answers to messages of a kind (by default, to all answers)."""

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
        (None, {"field": "txt"}, "an observation has no txt (it has text, legal, place); fix env.field"),
        (misbehave(observation={"a\nb": 1}), {}, "an observation has no text (it has a b); fix env.field"),
        (None, {"field": "text.here"}, "an observation has no text.here"),
        (None, {"listed": "text"}, "text is not a list of actions: The goal is 2. You are at 0.; fix env.listed."),
        (None, {"action": "wrd"}, "rejects an action with the fields wrd (word is missing; wrd is extra_forbidden)"),
        (misbehave(kind="reset", code="EXECUTION_ERROR"), {}, "reset of task 0 failed on the server (EXECUTION_ERROR"),
        (misbehave(kind="step", code="EXECUTION_ERROR"), {}, "action 'add one' failed on the server (EXECUTION_ERROR:"),
        (misbehave(code="FACTORY_ERROR"), {}, "failed on the server (FACTORY_ERROR: the game [2Jis broken)"),
        (misbehave(kind="step", reward=-1.0), {}, "in task 0 the rewards add up to -1, but a score must be in [0, 1]"),
        (misbehave(kind="step", reward=7), {"score": "last"}, "in task 0 a reward is 7, but a score must be in [0, 1]"),
        (misbehave(kind="step", reward=float("nan")), {}, "the answer to step is not OpenEnv's (field 'reward': "),
        (misbehave(reward="1"), {}, "the answer to reset is not OpenEnv's (field 'reward"),
        (misbehave(observation="text"), {}, "the answer to reset is not OpenEnv's (field 'observation': "),
        (misbehave("no JSON"), {}, "the answer to reset is not OpenEnv's: no JSON"),
        (misbehave("[" * 100_000), {}, "the answer to reset is not OpenEnv's: [[["),
        (misbehave("x" * 2000), {"max_message": 1000}, "the answer to reset is longer than 1000 bytes; raise env.max_"),
        (misbehave(observation=nested(600)), {"field": "", "listed": ""}, "is nested too deeply; set env.field"),
        (misbehave(30.0), {"server_timeout": 1}, "no answer to reset within 1 s"),
        (misbehave(kind="reset", done=True), {}, "task 0 ends at its reset; fix env.reset"),
    ],
)  # fmt: skip
def test_bad_input_is_reported_in_one_sentence(
    server: OpenEnvServer, changes: Any, keys: dict[str, Any], said: str
) -> None:
    server.changes = changes or server.changes
    with pytest.raises(UserError) as refused:
        section(server, **keys).make()
    assert said in str(refused.value)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    ("address", "proxy", "said"),
    [
        ("http://a..b:8000", "", "encoding with 'idna' codec failed"),
        ("http://node7:8000", "http://proxy:80a", "port can't be converted to integer"),
        ("http://node7:8000", "socks5://proxy", "the proxy is none that aiohttp can use"),
    ],
)
def test_a_host_or_a_proxy_that_cannot_be_used_is_reported_in_one_sentence(
    address: str, proxy: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    if proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy)
    with pytest.raises(UserError, match=r"correct or unset HTTP_PROXY") as refused:
        text_env(**{**GAME, "name": f"openenv:{address}"}).make()
    assert said in str(refused.value)


def test_a_reset_that_depends_on_more_than_the_task_is_refused(server: OpenEnvServer) -> None:
    server.changes = lambda told, message: {**told, "observation": {**told["observation"], "text": str(server.made)}}
    with pytest.raises(UserError, match=r"task 0 began with '\d' and then with '\d'; reset must depend only on"):
        section(server).world()


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"name": "openenv:localhost:8000"}, "openenv: must be followed by an address like http://127.0.0.1:8000"),
        (
            {"name": "openenv:http://me:secret@127.0.0.1:8000"},
            "openenv: must be followed by an address like http://127.0.0",
        ),
        ({"server": "http://127.0.0.1:9"}, "server: the address belongs in name; set null"),
        ({"actions": ["up", "up"]}, "actions: an action is listed twice; list each once"),
        (
            {"action": {"word": "up"}},
            "action: no field is {action}, {number} or {json}; use one for the action's text",
        ),
        ({"score": "best"}, "score"),
        ({"feild": "text"}, "feild: unknown key; remove it or fix its name"),
    ],
)
def test_invalid_params_are_refused_before_anything_is_sent(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as refused:
        text_env(**{"name": "openenv:http://127.0.0.1:9", **keys})
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"task": 60, "moves": []}, "line 1: 'task' must be a number below env.tasks (60)"),
        ({"task": 3, "moves": []}, "line 1: 'moves' must be a list of objects with the strings 'thought' and 'action'"),
        ({"task": 3, "moves": [{"action": "add one"}]}, "line 1: 'moves' must be"),
    ],
)
def test_invalid_rows_in_a_file_of_experts_are_refused_by_line(
    server: OpenEnvServer, tmp_path: Path, row: dict[str, Any], said: str
) -> None:
    file = tmp_path / "ways.jsonl"
    file.write_text(json.dumps(row) + "\n")
    with pytest.raises(UserError) as refused:
        section(server, experts=str(file)).make()
    assert said in str(refused.value)


def test_labels_require_listed_actions(server: OpenEnvServer) -> None:
    env = listed_env(name=server.name, **FREE).make()
    with pytest.raises(UserError, match="openenv does not list its actions, so they cannot be labelled"):
        env.reset(0)


@pytest.mark.parametrize(
    ("listens", "said"),
    [
        (False, "nothing answers at openenv:http://127.0.0.1:9 (cannot connect: "),
        (True, "is not an OpenEnv server (status 404 for /ws); fix the address in env.name."),
    ],
)
def test_a_stage_that_finds_no_server_ends_with_an_error_without_a_traceback(
    forks: Forks, tmp_path: Path, server: OpenEnvServer, listens: bool, said: str
) -> None:
    name = f"{server.name}/other" if listens else "openenv:http://127.0.0.1:9"
    copy_code(tmp_path)
    write_params(tmp_path, overlay("agent_r", {**GAME, "name": name}))
    ran = forks.run(tmp_path, "agent_r.data", "")
    assert ran.code == 2
    assert said in ran.stderr
    assert "Traceback" not in ran.stderr
