"""Creating environments from params, and the command that serves one."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from selfimprove.apps.serve import serve
from selfimprove.core.errors import UserError
from selfimprove.envs.interface import EmbeddedWorld, World
from selfimprove.envs.registry import answer_env, text_env
from selfimprove.envs.replay import ReplayWorld

PARAMS = Path("profiles/default.yaml")
RECIPE = {
    "type": "crafting_shapeless",
    "ingredients": [{"item": "minecraft:oak_log"}],
    "result": {"item": "minecraft:oak_planks", "count": 4},
}


def begin(world: World, task: int) -> str:
    async def work() -> str:
        try:
            return (await world.reset(task))[1]
        finally:
            await world.close()

    return asyncio.run(work())


@pytest.mark.parametrize("section", [text_env, answer_env])
@pytest.mark.parametrize("key", [{"labels": "single"}, {"shuffle_action": True}, {"curriculum_index": 1}])
def test_keys_of_labels_are_refused_where_actions_are_commands(section: Any, key: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=f"{next(iter(key))} has no effect where actions are commands"):
        section(name="taxi", **key)
    section(name="taxi", seed=1)


@pytest.mark.parametrize("name", ["textcraft", "webshop"])
def test_params_create_the_embedded_environment(name: Any) -> None:
    params = text_env(name=name, **{"products": 300} if name == "webshop" else {})
    env, world = params.make(), params.world()
    assert isinstance(world, EmbeddedWorld)
    assert (env.name, world.name, world.instruction) == (name, name, env.instruction)
    assert begin(world, 7) == env.reset(7)


def test_textcraft_uses_the_seed_and_the_recipes_from_the_params(tmp_path: Path) -> None:
    texts = {text_env(seed=seed).make().reset(300) for seed in (1, 2, 1)}
    assert len(texts) == 2
    book = tmp_path / "book.json"
    book.write_text(json.dumps({"oak_planks.json": RECIPE}), encoding="utf-8")
    env = text_env(recipes=str(book)).make()
    assert list(env.task_ids()) == [0]
    assert env.reset(0) == "Crafting commands:\ncraft 4 oak planks using 1 oak log\n\nGoal: craft oak planks."
    with pytest.raises(UserError, match="nowhere"):
        text_env(recipes=str(tmp_path / "nowhere.json")).make()


def test_webshop_uses_the_catalogue_seed_from_the_params() -> None:
    texts = {text_env(name="webshop", products=300, catalogue_seed=s).make().reset(0) for s in (1, 2, 1)}
    assert len(texts) == 2


@pytest.mark.parametrize("name", ["textcraft", "webshop", "sciworld"])
def test_a_server_in_the_params_creates_a_remote_world(name: Any) -> None:
    world = text_env(name=name, server="http://127.0.0.1:9", server_concurrency=3, server_timeout=2.0).world()
    assert isinstance(world, ReplayWorld)
    assert world.name == name
    assert world.instruction.strip()
    if name != "sciworld":
        assert world.instruction == text_env(name=name).make().instruction
    with pytest.raises(UserError, match=r"env\.server"):
        text_env(name=name, server="127.0.0.1").world()


@contextmanager
def served(*options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Run the command of ``make serve``; yields its first line of output and its process."""
    command = [sys.executable, "-u", "-m", "selfimprove.apps.serve", "--params", str(PARAMS), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline(), process
    finally:
        process.kill()
        process.communicate()


def test_serve_runs_until_interrupted_and_a_second_server_on_its_port_is_refused() -> None:
    with served("--env", "textcraft", "--port", "0") as (line, process):
        assert line.startswith("textcraft at http://127.0.0.1:"), process.stderr and process.stderr.read()
        url = line.split()[2].rstrip(",")
        world = text_env(name="textcraft", server=url, server_concurrency=2).world()
        assert begin(world, 5) == text_env(name="textcraft").make().reset(5)
        with served("--env", "textcraft", "--port", url.rpartition(":")[2]) as (nothing, second):
            assert nothing == ""
            assert second.wait(30) == 2
            assert second.stderr is not None
            said = second.stderr.read()
            assert "choose another port." in said
            assert "Traceback" not in said
        process.send_signal(signal.SIGINT)
        process.wait(30)
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("webshp", "did you mean 'webshop'?"), ("chess", "choose one of sciworld, textcraft, webshop.")],
)
def test_serve_refuses_an_unknown_environment_and_suggests_those_that_it_serves(name: str, remedy: str) -> None:
    with pytest.raises(UserError) as refused:
        serve(env=name)
    assert str(refused.value) == f"serve: ENV={name!r} is not an environment of AgentGym's protocol; {remedy}"


def test_told_limits_what_a_plan_of_actions_is_told() -> None:
    plans: Any = answer_env(name="textcraft", told=400, max_actions=10).make()
    (problem,) = plans.problems({"train": 1}, seed=1)["train"]
    _, told = asyncio.run(plans.carry_out("\n".join(["x" * 900] * 10), problem))
    assert 300 < len(told) <= 400 + 10


def test_others_adds_paragraphs_to_a_question() -> None:
    made: list[Any] = [answer_env(name="encyclopedia", people=60, questions=60, others=n).make() for n in (0, 6)]
    few, many = (env.problems({"test": 3}, seed=1)["test"] for env in made)
    assert all(a.question.count("\n") + 4 < b.question.count("\n") for a, b in zip(few, many, strict=True))


def test_attempts_limits_the_tries_at_a_problem() -> None:
    env = text_env(name="gsm8k", attempts=2, count=40).make()
    env.reset(0)
    assert [env.step("I do not know.").done for _ in range(2)] == [False, True]


def test_grade_timeout_reaches_the_process_that_compares_formulas() -> None:
    math: Any = answer_env(name="math", equiv="extended", grade_timeout=0.5).make()
    assert math._symbolic._timeout == 0.5
