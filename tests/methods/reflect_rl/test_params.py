"""Invalid params are refused in one sentence that names the key."""

from __future__ import annotations

from typing import Any

import pytest

from selfimprove.core.errors import UserError
from selfimprove.methods.reflect_rl.params import ReflectRLParams
from selfimprove.methods.reflect_rl.rl_config import CriticParams, RLParams
from selfimprove.methods.reflect_rl.summary import main_row, reflect_rl_rows
from selfimprove.pipeline.params import SECTIONS, load_section

ENGINE, VLLM = {"engine": "transformers"}, {"engine": "vllm"}
ADVISED, ALONE = {"reflector": "reflector"}, {"reflector": "none"}
RUN = {"init": "policy", "reflector": "reflector"}
MODELS = {
    "reflector": {"init": "start", "data": "sft_reflection", "match": "none"},
    "policy": {"init": "start", "data": "sft_policy", "match": "none"},
    "plain": {"init": "start", "data": "sft", "match": "none"},
    "more_sft": {"init": "policy", "data": "sft_policy", "match": "reflect_rl"},
}


def params(**changes: object) -> dict[str, object]:
    return {
        "env": {"name": "taxi"},
        "engines": {"policy": ENGINE, "reflector": ENGINE, "teacher": {"engine": "scripted"}},
        "generate": {},
        "models": MODELS,
        "iterations": {
            "rl_only": {"init": "start", "reflector": "none"},
            "no_reflection": {"init": "plain", "reflector": "none"},
            "reflect_rl": RUN,
        },
        "rows": {
            "policy": ADVISED,
            "more_sft": ADVISED,
            "rl_only": ALONE,
            "no_reflection": ALONE,
            "reflect_rl": ADVISED,
        },
        "agents": {"chance": {"kind": "random"}},
        **changes,
    }


def load(**changes: object) -> ReflectRLParams:
    name = "reflect_rl" if "reflect_rl" in SECTIONS else SECTIONS[0]
    return load_section({name: params(**changes)}, name, ReflectRLParams, "params.yaml")


def test_the_defaults_are_those_of_the_papers_code() -> None:
    rl = {
        "algorithm": "pg", "max_steps": 20000, "episodes": 4, "replay_episodes": 1, "replay_buffer": 50, "lr": 2e-4,
        "weight_decay": 0.001, "grad_clip": 0.3, "schedule": "constant", "gradient_accumulation_steps": 1,
        "entropy_coef": 0.0, "ppo_clip": 0.1, "ppo_epochs": 3, "critic": None, "curriculum": False, "save_steps": 100,
        "temperature": 1.0, "top_p": 1.0, "top_k": 0, "shrink_head": True, "mask_invalid": False, "reflect_prob": 1.0,
        "reflect_temperature": 1.0, "reflect_top_p": 1.0, "max_tokens": 100,
    }  # fmt: skip
    assert RLParams().model_dump() | rl == RLParams().model_dump()
    critic = {"kind": "linear", "shared": False, "lr": 2e-4, "every": 5, "epochs": 5}
    assert CriticParams().model_dump() == critic
    cfg = load(env={"name": "autoexplore"})
    env = {
        "max_turns": 15, "labels": "full", "shuffle_action": False, "curriculum_index": -1, "leaveout_prob": 0.5,
        "easy": False, "first_step": False, "union_targets": False, "keyword_costs": {}, "merge_first_two": False,
        "merge_after_first_k": 3, "files_per_repo": 100, "max_level": 2,
    }  # fmt: skip
    assert cfg.env.model_dump() | env == cfg.env.model_dump()
    generate = {"negatives": 2, "oracle_prob": 0.1, "max_turns": 15, "temperature": 0.7, "top_p": 0.9}
    assert cfg.generate.model_dump() | generate == cfg.generate.model_dump()
    assert (cfg.evaluate.eval_reps, cfg.tasks.few_data, cfg.report.window) == (10, 0, 99)


def test_rows_are_in_the_order_of_the_results_table() -> None:
    loaded = load()
    assert list(reflect_rl_rows(loaded)) == ["chance", "policy", "more_sft", "rl_only", "no_reflection", "reflect_rl"]
    assert reflect_rl_rows(loaded)["policy"] == "SFT only"
    assert main_row(loaded) == "reflect_rl"


def only(**runs: object) -> dict[str, Any]:
    """Changes that leave only these runs and remove the control."""
    models = {name: MODELS[name] for name in ("reflector", "policy", "plain")}
    return {"models": models, "iterations": runs, "rows": {"policy": ADVISED, **dict.fromkeys(runs, ALONE)}}


def test_the_lineage_of_a_run_lists_its_ancestors() -> None:
    runs = {name: {"init": init, "reflector": "none"} for name, init in (("a", "plain"), ("b", "a"), ("c", "b"))}
    assert load(**only(**runs)).lineage("c") == ["a", "b", "c"]


def test_the_reflector_and_the_evaluation_may_use_their_own_engines() -> None:
    remote = {"engine": "openai", "base_url": "http://x", "model": "m"}
    for reflector in (ENGINE, VLLM, remote):
        engines = {"policy": ENGINE, "reflector": reflector, "teacher": {"engine": "scripted"}, "fast": VLLM}
        assert load(engines=engines, evaluate={"engine": "fast"}).evaluate.engine == "fast"


def test_an_environment_accepts_its_own_options_and_others_at_their_defaults() -> None:
    for env in (
        {"name": "taxi", "mode": "pickup", "max_files": 300},
        {"name": "alfworld", "backend": "textworld", "games": "x", "thing": None},
        {"name": "autoexplore", "repos": "x", "keyword_costs": {"Error": 2}},
    ):
        assert load(env=env).env.name == env["name"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (only(r={**RUN, "reflector": "policy"}), "iterations.r.reflector: 'policy' was not trained to reflect; name"),
        (only(r={**RUN, "reflector": "nobody"}), "'nobody' was not trained to reflect"),
        (only(r={**RUN, "init": "nowhere"}), "there is no model 'nowhere'; choose one of start, reflector, policy"),
        (only(a={**ALONE, "init": "b"}, b={**ALONE, "init": "a"}), "the iterations form a cycle"),
        (only(policy=RUN), "the name is taken"),
        (only(none=RUN), "iterations.none: the name is taken"),
        (only(**{"a b": RUN}), "only letters, digits, _ and -"),
        (only(r=RUN), "rows.r.reflector: must be 'reflector', as in iterations.r.reflector"),
        ({"rows": {"policy": ADVISED}}, "iterations.rl_only: has no row; add rows.rl_only, with its reflector"),
        (
            only(r=RUN) | {"rows": {"r": ADVISED, "sft": ALONE}},
            "rows.sft: there is no model or run 'sft'; choose one of",
        ),
        (
            {"models": {**MODELS, "more_sft": {**MODELS["more_sft"], "match": "x"}}},
            "models.more_sft.match: there is",
        ),
        ({"models": {**MODELS, "plain": {**MODELS["plain"], "init": "x"}}}, "models.plain.init: there is no model 'x'"),
        ({"models": {**MODELS, "plain": {**MODELS["plain"], "init": "plain"}}}, "the models form a cycle"),
        (
            {"models": {**MODELS, "reflector": {**MODELS["reflector"], "match": "reflect_rl"}}},
            "models.reflector.match: 'reflect_rl' itself depends on 'reflector'",
        ),
        (
            {"models": {**MODELS, "policy": {**MODELS["policy"], "match": "reflect_rl"}}},
            "models.policy.match: 'reflect_rl' itself depends on 'policy'",
        ),
        (
            {"engines": {"policy": ENGINE, "teacher": {"engine": "scripted"}}},
            "'reflector', the engine for reflections, is missing",
        ),
        (
            {"engines": {"policy": {"engine": "scripted"}, "reflector": ENGINE, "teacher": ENGINE}},
            "engines.policy: a scripted engine has no model to train; use another kind here",
        ),
        (
            {"engines": {"policy": VLLM, "reflector": ENGINE, "teacher": ENGINE}},
            "engines.policy: must share the weights that reinforcement learning updates; use transformers",
        ),
        (
            {"engines": {"policy": ENGINE, "reflector": {"engine": "scripted"}, "teacher": ENGINE}},
            "engines.reflector: a scripted engine has no model to train; use another kind here",
        ),
        (
            {"engines": {"policy": ENGINE, "reflector": {**VLLM, "model": "/m"}, "teacher": ENGINE}},
            "engines.reflector.model: every row would be evaluated with this one model",
        ),
        ({"evaluate": {"engine": "fast"}}, "evaluate.engine: there is no engine 'fast'"),
        ({"evaluate": {"engine": "teacher"}}, "evaluate.engine: must load the evaluated weights"),
        (
            {
                "engines": {"policy": ENGINE, "reflector": ENGINE, "teacher": {"engine": "scripted"}, "fast": VLLM},
                "evaluate": {"engine": "fast", "shrink_head": False},
            },
            "evaluate.engine: vllm can only choose among labels; set evaluate.shrink_head or evaluate.mask_invalid",
        ),
        ({"generate": {"teacher": "nobody"}}, "there is no engine 'nobody'; choose one of policy, reflector, teacher"),
        ({"agents": {"x": {"kind": "react"}}}, "kind 'react' needs an engine"),
        ({"agents": {"x": {"kind": "random", "engine": "policy"}}}, "kind 'random' uses no engine"),
        ({"agents": {"x": {"kind": "chat", "engine": "teacher"}}}, "a scripted engine is not a chat model"),
        ({"report": {"window": 10}}, "window: 10 is even"),
        ({"tasks": {"train": 4}}, "set all of train, dev and test, or none"),
        (
            {"env": {"name": "lake"}},
            "env: name: 'lake' is unknown; choose alfworld, autoexplore, taxi, ",
        ),
        ({"env": {"name": "taxi", "max_files": 20}}, "env: max_files is an option of autoexplore, but name is taxi;"),
        ({"env": {"name": "taxi", "thing": None}}, "thing is an option of alfworld, but name is taxi; remove it"),
        ({"env": {"name": "autoexplore", "mode": "pickup"}}, "mode is an option of taxi, but name is autoexplore"),
        ({"env": {"name": "taxi", "blacklist": "x"}}, "blacklist is an option of alfworld, but name is taxi"),
        ({"env": {"name": "alfworld", "games": "x"}}, "games is an option of textworld, but backend is kitchen"),
        ({"tasks": {"file": "x.json"}}, "tasks.file: taxi does not support tasks from a file or a teacher; remove it"),
        ({"tasks": {"teacher": "teacher"}}, "tasks.teacher: taxi does not support tasks from a file or a teacher"),
    ],
)
def test_invalid_params_are_refused_in_one_sentence(changes: Any, said: str) -> None:
    with pytest.raises(UserError) as refused:
        load(**changes)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
