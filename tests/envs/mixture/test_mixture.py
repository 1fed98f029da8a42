"""Several environments as one: ``env: [a, b]``."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from selfimprove.core.errors import UserError
from selfimprove.core.outcomes import Outcome
from selfimprove.envs.interface import AgentEnv, Mixes, name_of
from selfimprove.envs.mixture.env import INSTRUCTION, Mixture, opened
from selfimprove.envs.mixture.world import MixtureParams
from selfimprove.envs.params import EnvParams
from selfimprove.envs.registry import INNER
from selfimprove.envs.splits import Shared, apportioned, draw_splits
from selfimprove.methods.agent_r.judge import starting
from selfimprove.methods.agent_r.judge_prompt import task_line
from selfimprove.methods.summary import by_environment
from selfimprove.pipeline.closure import manifests
from selfimprove.pipeline.params import load_section
from selfimprove.pipeline.sections import METHOD_SCHEMAS
from tests.envs.contract import check_acted
from tests.envs.remote.agentgym_worlds import Laboratory, textcraft
from tests.support.profiles import profile

ROOT = Path(__file__).resolve().parents[3]
ENCYCLOPEDIA = {"name": "encyclopedia", "people": 60, "distractors": 0, "questions": 60}
LIST = [{"name": "textcraft", "share": 0.75}, {**ENCYCLOPEDIA, "share": 0.25}]


def section(method: str, env: Any) -> Any:
    """The method's params with this environment."""
    params = profile("smoke")
    params[method]["env"] = env
    if method == "agent_r":
        params[method]["tasks"]["layouts"] = 1
    return load_section(params, method, METHOD_SCHEMAS[method], "params.yaml")


def made() -> AgentEnv:
    env: AgentEnv = section("agent_r", LIST).env.make()
    assert isinstance(env, Mixes)
    return env


def test_a_mixture_satisfies_the_contract_of_every_environment() -> None:
    check_acted(made(), made(), [0, 1, 2, 3, 20, 41], 60)


def test_a_task_starts_with_the_instruction_of_its_environment() -> None:
    env = made()
    assert env.instruction == INSTRUCTION
    assert [name_of(env, task) for task in (6, 7)] == ["textcraft", "encyclopedia"]
    assert "Crafting commands" in env.reset(6)
    assert "finish[" in env.reset(7)


@pytest.mark.parametrize("part", ["textcraft", "webshop", "encyclopedia", "gsm8k", "alfworld", "autoexplore", "taxi"])
def test_the_short_judge_sees_the_same_task_line_as_without_a_mixture(part: str) -> None:
    named = {"encyclopedia": ENCYCLOPEDIA, "gsm8k": {"name": "gsm8k", "count": 40}}.get(part, {"name": part})
    env = section("agent_r", named).env.make()
    task = env.reset(env.task_ids()[0])
    assert task_line(opened(env, task)) == task_line(task)
    assert task_line(task) in task


def test_the_task_line_also_skips_scienceworlds_instruction() -> None:
    env: Any = SimpleNamespace(instruction=section("agent_r", {"name": "sciworld"}).env.instruction())
    assert task_line(opened(env, "Task Description:\nBoil water.")) == "Task Description:"
    assert task_line(opened(env, "The hall.")) == "The hall."


def test_the_mixtures_world_gives_the_same_observations_as_its_environment() -> None:
    async def first(task: int) -> str:
        world = section("agent_r", LIST).env.world()
        state, observation = await world.reset(task)
        _, step = await world.step(state, "inventory")
        await world.close()
        return f"{observation}\n{step.observation}"

    env = made()
    for task in (6, 7):
        assert asyncio.run(first(task)) == f"{env.reset(task)}\n{env.step('inventory').observation}"


def test_the_judge_starts_from_the_points_with_which_an_environment_begins() -> None:
    env = Mixture("both", [textcraft(), Laboratory()], [1.0, 1.0])
    for task, reward in ((2 * 5, 0.0), (2 * 5 + 1, 0.08)):  # task 5 of each environment
        env.reset(task)
        assert starting(env).reward == reward


def test_splits_and_their_leading_parts_have_the_configured_shares() -> None:
    env = made()
    ids = env.task_ids()
    splits = draw_splits(env.name, ids, {"train": 20, "dev": 4, "test": 10, "demonstrations": 8}, seed=3)
    counts = {name: sum(name_of(env, task) == "textcraft" for task in tasks) for name, tasks in splits.items()}
    assert counts == {"train": 15, "dev": 3, "test": 8, "demonstrations": 6}
    assert sum(name_of(env, task) == "textcraft" for task in splits["train"][:4]) == 3
    assert len({task for tasks in splits.values() for task in tasks}) == 42
    assert splits == draw_splits(env.name, ids, {"train": 20, "dev": 4, "test": 10, "demonstrations": 8}, seed=3)


def test_a_count_is_apportioned_in_whole_numbers() -> None:
    assert apportioned(10, [0.5, 0.25, 0.25]) == [5, 3, 2]
    assert apportioned(0, [0.5, 0.5]) == [0, 0]
    assert all(sum(apportioned(n, [0.3, 0.3, 0.4])) == n for n in range(50))


def test_an_environment_with_too_few_tasks_is_named() -> None:
    with pytest.raises(UserError, match="test: 3 tasks of b are requested, but 2 of"):
        draw_splits("a+b", Shared({"a": range(90), "b": range(2)}, [0.5, 0.5]), {"test": 6}, seed=1)


def test_metrics_are_reported_for_each_environment() -> None:
    outcomes = [Outcome(id=f"a+b-{task}", values={"score": float(task % 2)}) for task in range(6)]
    found = by_environment(outcomes, ["a", "b"])
    assert {name: found[name]["score"]["mean"] for name in found} == {"a": 0.0, "b": 1.0}
    assert found["a"]["score"]["n"] == 3


def modules(env: EnvParams) -> set[str]:
    """The modules of an environment's section, of the one that it adapts, and of its parts."""
    inner = getattr(env, INNER, None)
    inside = [*([inner] if inner else []), *(env.mixed() if isinstance(env, MixtureParams) else ())]
    return {type(env).__module__}.union(*map(modules, inside))


def test_a_stage_depends_on_the_mixture_its_environments_and_their_adapters(tmp_path: Path) -> None:
    for tree in ("selfimprove", "stages", "requirements"):
        (tmp_path / tree).symlink_to(ROOT / tree)
    taxi, attempts = [{"name": "taxi"}, {"name": "textcraft"}], {"name": "gsm8k", "count": 40}
    mixtures: dict[str, Any] = dict.fromkeys(METHOD_SCHEMAS, taxi)
    mixtures |= {"rise": [*taxi, attempts], "spin": {"name": "mixture", "parts": taxi}}
    (tmp_path / "params.yaml").write_text(json.dumps({method: {"env": env} for method, env in mixtures.items()}))
    scripts = {Path(f"stages/{method}/generate.py"): method for method in mixtures}
    for script, found in manifests(scripts, tmp_path).items():
        named = modules(section(scripts[script], mixtures[scripts[script]]).env)
        assert {"selfimprove.envs.mixture.world", "selfimprove.envs.taxi.world"} < named
        files = {line.split("  ")[1] for line in found.splitlines()}
        assert {f"{name.replace('.', '/')}.py" for name in named} <= files
        assert {"selfimprove/envs/taxi/env.py", "selfimprove/envs/textcraft/env.py"} < files
        assert not {"selfimprove/envs/webshop/env.py", "selfimprove/envs/alfworld/env.py"} & files


@pytest.mark.parametrize("method", ["rise", "agent_r", "reflect_rl", "spin"])
def test_every_method_accepts_a_list_of_environments(method: str) -> None:
    assert [one.world_name for one in section(method, LIST).env.mixed()] == ["textcraft", "encyclopedia"]


@pytest.mark.parametrize(
    ("env", "said"),
    [
        ([{"name": "textcraft"}, {"name": "lake"}], "env: 1.name: 'lake' is unknown; choose"),
        ([{"name": "textcraft"}, {"share": 0.5}], "env: 1: name is missing"),
        ([{"name": "textcraft", "share": 0.5}, {**ENCYCLOPEDIA, "share": 0.4}], "sum to 0.9; make them sum to 1"),
        (
            [{"name": "textcraft", "share": 0}, {**ENCYCLOPEDIA, "share": 1}],
            "env: 0.share: 0 is not a share of the tasks; set",
        ),
        ([{"name": "textcraft"}, {"name": "textcraft", "seed": 2}], "names an environment twice; name each once"),
        ([{"name": "textcraft"}], "at least 2 items"),
        ([{"name": "textcraft", "recipe": 1}, ENCYCLOPEDIA], "env: 0.recipe: unknown key"),
    ],
)
def test_bad_input_is_reported_in_one_sentence(env: Any, said: str) -> None:
    with pytest.raises(UserError) as refused:
        section("agent_r", env)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_labels_require_every_environment_to_list_its_actions() -> None:
    attempts = {"name": "gsm8k", "count": 40}
    both: Any = {"name": "mixture", "parts": [{"name": "textcraft"}, attempts]}
    with pytest.raises(UserError, match="gsm8k has no actions that can be listed, which this method needs; remove it"):
        section("reflect_rl", both)
