"""The examples in docs/environments.md work as printed (for its table, see tests/methods/test_matrix.py)."""

from __future__ import annotations

import asyncio
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from selfimprove.envs.interface import EmbeddedWorld
from selfimprove.envs.registry import text_env
from selfimprove.pipeline.params import METHODS
from selfimprove.pipeline.small_defaults import small_settings
from tests.envs.contract import check_acted
from tests.methods.cells import overlay, play_cell
from tests.pipeline.workbench import Forks
from tests.support.repo_copy import ROOT, copy_repo, run
from tests.support.sentences import check_sentence
from tests.support.tiny import make_tiny_model

PAGE = (ROOT / "docs/environments.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    """The page's code blocks in a language, in order."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def use(root: Path, overlay: str) -> dict[str, Any]:
    """Follow the page: write a custom profile, run `make use`, and return the params."""
    (root / "profiles/mine.yaml").write_text(overlay)
    run(root, "git", "checkout", "--quiet", "params.yaml")
    run(root, sys.executable, "-m", "selfimprove.pipeline.profiles", "mine")
    params: dict[str, Any] = YAML(typ="safe", pure=True).load(root / "params.yaml")
    return params


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return copy_repo(tmp_path_factory.mktemp("own") / "repo", "default")


@pytest.mark.slow
def test_custom_problems_become_the_splits_and_the_demonstrations(forks: Forks, root: Path) -> None:
    data, *_ = blocks("yaml")
    (root / "my").mkdir()
    rows = blocks("json")[0]
    (root / "my/train.jsonl").write_text(rows)
    (root / "my/test.jsonl").write_text(rows.replace("Ada", "Ben").replace("eggs", "nuts"))
    use(root, data)
    run(root, sys.executable, "-m", "selfimprove.pipeline.check", "rise")
    stage(forks, root, "rise.data")
    examples = [json.loads(line) for line in (root / "data/rise/base/train/examples.jsonl").read_text().splitlines()]
    assert len(examples) == 1
    written = "".join(path.read_text() for path in sorted((root / "data/rise/tasks").rglob("*.jsonl")))
    assert "Ada has 3 pens" in written
    assert "How many nuts are in 3 boxes?" in written


def test_a_custom_model_becomes_the_base_without_the_small_model_s_settings(forks: Forks, root: Path) -> None:
    _, own, *_ = blocks("yaml")
    make_tiny_model(root / "my-model", hidden=32, context=2048)
    params = use(root, own.replace("my/model", "my-model"))
    run(root, sys.executable, "-m", "selfimprove.pipeline.check", "rise")
    (root / "data/rise").mkdir(parents=True, exist_ok=True)
    (root / "data/rise/texts.jsonl").write_text('{"text": "unread"}\n')
    stage(forks, root, "base", "rise")
    weights = "model.safetensors"
    assert (root / "models/rise/start" / weights).read_bytes() == (root / "my-model" / weights).read_bytes()
    params["base"]["rise"]["model"] = "somebody/large"
    assert small_settings(params, "rise") is None


def page_class(name: str) -> Any:
    """A class defined on the page."""
    space: dict[str, Any] = {}
    for block in blocks("python"):
        exec(compile(block, "docs/environments.md", "exec"), space)  # code of our own page
    return space[name]


@pytest.mark.parametrize(
    ("number", "most"), [(0, 40), (1, 10), (2, 10), (3, 10)], ids=["from nothing", "act", "answer", "look up"]
)
def test_examples_are_short_and_formatted_as_by_ruff(number: int, most: int) -> None:
    block = blocks("python")[number]
    assert len([line for line in block.splitlines() if line.strip()]) <= most
    formatted = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length=120", "-"],
        input=block,
        capture_output=True,
        text=True,
        check=True,
    )
    assert formatted.stdout == block


def test_the_counter_example_implements_the_world_interface() -> None:
    world = EmbeddedWorld(page_class("Counter")())

    async def play() -> None:
        state, text = await world.reset(4)
        assert "The goal is 5" in text
        first, one = await world.step(state, "add one")
        _, other = await world.step(state, "sing")  # the old state stays as it was
        assert (one.observation, other.observation) == ("You are at 1.", "Nothing happens.")
        assert (one.info["valid"], other.info["valid"]) == (True, False)
        for action in ("double", "double", "add one"):
            first, one = await world.step(first, action)
        assert (one.reward, one.done) == (1.0, True)
        _, late = await world.step(first, "add one")
        assert (late.reward, late.done, late.info["valid"]) == (1.0, True, False)

    asyncio.run(play())


def test_the_from_scratch_example_fulfils_the_contract_of_every_environment() -> None:
    jugs = page_class("Jugs")
    check_acted(jugs(), jugs(), range(0, 90, 15))


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_on_the_from_scratch_example_up_to_its_report(
    forks: Forks, tmp_path: Path, method: str
) -> None:
    (tmp_path / "my").mkdir()
    (tmp_path / "my/worlds.py").write_text(blocks("python")[0])
    overlaid = YAML(typ="safe", pure=True).load(blocks("yaml")[2])[method]
    slips = {"engines": {"expert": {"error_rate": 0.1}}, "iterations": {"iter1": {"generate": {"max_depth": 20}}}}
    more = {key: value for key, value in overlaid.items() if key != "env"} | (slips if method == "agent_r" else {})
    summary = play_cell(forks, tmp_path, method, overlay(method, overlaid["env"], **more))
    assert summary["rows"]
    made = "".join(path.read_text() for path in sorted((tmp_path / "data").rglob("*.jsonl")))
    assert "litres" in made


def test_the_gymnasium_taxi_example_fulfils_the_contract_and_has_its_instruction() -> None:
    section = text_env(**YAML(typ="safe", pure=True).load(blocks("yaml")[3])["agent_r"]["env"])
    taxi = section.make()
    assert taxi.instruction.startswith("A taxi in a town.")
    check_acted(taxi, section.make(), range(0, 90, 15))


def test_the_example_of_several_environments_is_valid(root: Path) -> None:
    params = use(root, blocks("yaml")[4])
    assert [part["name"] for part in params["agent_r"]["env"]] == ["textcraft", "encyclopedia"]
    run(root, sys.executable, "-m", "selfimprove.pipeline.check", "agent_r")


def laid(root: Path, overlay: str) -> None:
    """Write the page's classes to a custom module, and use ``overlay`` as a profile."""
    (root / "my").mkdir(exist_ok=True)
    (root / "my/worlds.py").write_text("\n\n".join(blocks("python")))
    use(root, overlay)


def seconds(overlay: str, more: dict[str, Any]) -> str:
    """The smoke profile under the page's overlay and ``more``: small enough to run a whole method in a test."""
    yaml, out = YAML(typ="safe", pure=True), io.StringIO()
    smoke = yaml.load((ROOT / "profiles/smoke.yaml").read_text())
    yaml.dump(_laid_over(_laid_over(smoke, yaml.load(overlay)), more), out)
    return out.getvalue()


def _laid_over(below: Any, above: Any) -> Any:
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    return {key: _laid_over(below.get(key), above[key]) if key in above else below[key] for key in {**below, **above}}


def stage(forks: Forks, root: Path, name: str, item: str = "") -> None:
    ran = forks.run(root, name, item)
    assert ran.code == 0, ran.stderr


@pytest.mark.slow
def test_reflect_rl_generates_and_converts_trajectories_of_a_custom_environment(forks: Forks, root: Path) -> None:
    _, _, _, _, _, acted, _, _ = blocks("yaml")
    laid(root, acted)
    run(root, sys.executable, "-m", "selfimprove.pipeline.check", "agent_r")
    run(root, sys.executable, "-m", "selfimprove.pipeline.check", "reflect_rl")
    laid(root, seconds(acted, {}))
    stage(forks, root, "reflect_rl.data")
    stage(forks, root, "reflect_rl.generate")
    stage(forks, root, "reflect_rl.convert")
    policy = (root / "data/reflect_rl/base/train/sft_policy.jsonl").read_text()
    assert "Action 0: add one" in policy
    reflected = [json.loads(line) for line in (root / "data/reflect_rl/trajectories.jsonl").read_text().splitlines()]
    assert {one["env"] for one in reflected} == {"counter"}
    assert any(one["cost"] == -1 for one in reflected)  # the goal was reached
    laid(root, seconds(acted, {"reflect_rl": {"engines": {"teacher": {"error_rate": 1.0}}}}))
    stage(forks, root, "reflect_rl.generate")
    lost = [json.loads(line) for line in (root / "data/reflect_rl/trajectories.jsonl").read_text().splitlines()]
    assert {one["status"] for one in lost if one["info"] == "positive"} == {"unsolved"}


@pytest.mark.slow
def test_agent_r_searches_a_custom_environment_and_trains_on_its_trees(root: Path) -> None:
    _, _, _, _, _, acted, _, _ = blocks("yaml")
    deep = {"generate": {"max_depth": 16, "dives": 16}}  # the goals of these tasks are a dozen actions away
    laid(root, seconds(acted, {"agent_r": {"iterations": {"iter1": deep}}}))
    goals = "agent_r-finetune@iter1"
    run(root, sys.executable, "-m", "selfimprove.pipeline.warm", "dvc", "repro", goals)
    demonstrations = (root / "data/agent_r/base/train/examples.jsonl").read_text()
    assert "Reach the goal exactly" in demonstrations
    tasks = (root / "data/agent_r/tasks/train.jsonl").read_text().splitlines()
    assert json.loads(tasks[0])["env"] == "counter"
    revisions = (root / "data/agent_r/iter1/train/examples.jsonl").read_text()
    assert "Action: double" in revisions
    assert (root / "models/agent_r/iter1/model.safetensors").is_file()


@pytest.mark.slow
def test_rise_and_spin_use_custom_questions(forks: Forks, root: Path) -> None:
    data, _, _, _, _, _, graded, looked_up = blocks("yaml")
    laid(root, data + '  env: {name: "my.worlds:Backwards"}\n')
    assert "my.worlds:Backwards" in graded
    for name, words in (("train", ("abc", "def")), ("test", ("ghi", "jkl"))):
        rows = [json.dumps({"question": word, "answer": word[::-1]}) + "\n" for word in words]
        (root / f"my/{name}.jsonl").write_text("".join(rows))
    run(root, sys.executable, "-m", "selfimprove.pipeline.check", "rise")
    stage(forks, root, "rise.data")
    assert "Backwards it is " in (root / "data/rise/base/train/examples.jsonl").read_text()
    laid(root, looked_up)
    run(root, sys.executable, "-m", "selfimprove.pipeline.check", "spin")
    stage(forks, root, "spin.data")
    experts = (root / "data/spin/experts.jsonl").read_text().splitlines()
    assert len(experts) == 6000
    assert "The capital of Land0 is Town0." in experts[0]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "nowhere.at_all:Counter",
            "agent_r.env: name: module 'nowhere.at_all' cannot be imported (ModuleNotFoundError",
        ),
        ("my.worlds:Abacus", "agent_r.env: name: my.worlds has no class 'Abacus'"),
        ("my.worlds:Fact", "my.worlds:Fact lacks expert, instruction, name, reset, restore, snapshot, step, "),
        ("counter", "name: 'counter' is unknown; choose encyclopedia, hotpotqa, "),
    ],
)
def test_an_unusable_environment_class_is_refused_in_one_sentence_with_the_reason(
    root: Path, name: str, said: str
) -> None:
    (root / "my").mkdir(exist_ok=True)
    (root / "my/worlds.py").write_text("\n\n".join(blocks("python")))
    overlay = f"agent_r: {{env: {{name: '{name}'}}, tasks: {{layouts: 1}}}}\n"
    (root / "profiles/mine.yaml").write_text(overlay)
    done = subprocess.run(
        [sys.executable, "-m", "selfimprove.pipeline.profiles", "mine"], cwd=root, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert said in done.stderr
    check_sentence(done.stderr.removesuffix("\n"))
