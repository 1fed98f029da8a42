"""The params refuse what can't work, each in a sentence that names the key."""

from __future__ import annotations

from typing import Any

import pytest

from selfimprove.core.errors import UserError
from selfimprove.methods.reflect_rl.params import ReflectRLParams
from selfimprove.methods.reflect_rl.summary import main_row, reflect_rl_rows
from selfimprove.pipeline.params import SECTIONS, load_section

ENGINE, VLLM = {"engine": "transformers"}, {"engine": "vllm"}


def params(**changes: object) -> dict[str, object]:
    return {
        "env": {"name": "taxi"},
        "engines": {"policy": ENGINE, "reflector": ENGINE, "teacher": {"engine": "scripted"}},
        "generate": {},
        "sft": {
            "reflector": {"data": "sft_reflection", "finetune": {}},
            "policy": {"data": "sft_policy", "finetune": {}},
            "plain": {"data": "sft", "finetune": {}},
            "untrained": {"data": "sft", "finetune": {"epochs": 0}},
        },
        "iterations": {
            "rl_only": {"init": "untrained"},
            "no_reflection": {"init": "plain", "reflector": "reflector", "reflect": False},
            "reflect_rl": {"init": "policy", "reflector": "reflector"},
        },
        "controls": {
            "more_sft": {
                "init": "policy",
                "data": "sft_policy",
                "match": "reflect_rl",
                "reflector": "reflector",
                "finetune": {},
            }
        },
        "evaluate": {"reflector": "reflector"},
        "agents": {"chance": {"kind": "random"}},
        **changes,
    }


def load(**changes: object) -> ReflectRLParams:
    name = "reflect_rl" if "reflect_rl" in SECTIONS else SECTIONS[0]
    return load_section({name: params(**changes)}, name, ReflectRLParams, "params.yaml")


def test_rows_stand_in_the_tables_order() -> None:
    loaded = load()
    assert list(reflect_rl_rows(loaded)) == ["chance", "policy", "more_sft", "rl_only", "no_reflection", "reflect_rl"]
    assert reflect_rl_rows(loaded)["policy"] == "SFT only"
    assert main_row(loaded) == "reflect_rl"


def test_trap_a_reflector_is_implied_by_naming_it() -> None:
    loaded = load()
    assert loaded.reflector_of("reflect_rl") == loaded.reflector_of("policy") == loaded.reflector_of("more_sft")
    assert loaded.reflector_of("reflect_rl") == "reflector"
    assert (
        loaded.reflector_of("no_reflection") is loaded.reflector_of("plain") is loaded.reflector_of("rl_only") is None
    )


def test_a_run_inherits_its_start_from_its_parent() -> None:
    runs = {"a": {"init": "plain"}, "b": {"init": "a"}, "c": {"init": "b"}}
    assert load(iterations=runs, controls={}).lineage("c") == ["a", "b", "c"]


def test_the_reflector_and_the_evaluations_may_have_engines_of_their_own() -> None:
    remote = {"engine": "openai", "base_url": "http://x", "model": "m"}
    for reflector in (ENGINE, VLLM, remote):
        engines = {"policy": ENGINE, "reflector": reflector, "teacher": {"engine": "scripted"}, "fast": VLLM}
        assert load(engines=engines, evaluate={"engine": "fast", "reflector": "reflector"}).evaluate.engine == "fast"


def test_an_environment_takes_its_own_options_and_those_that_say_nothing_new() -> None:
    for env in (
        {"name": "taxi", "mode": "pickup", "max_files": 300},
        {"name": "alfworld", "backend": "textworld", "games": "x", "thing": None},
        {"name": "autoexplore", "repos": "x", "keyword_costs": {"Error": 2}},
    ):
        assert load(env=env).env.name == env["name"]


RUN = {"init": "policy", "reflector": "reflector"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"iterations": {"r": {"init": "policy", "reflector": "policy"}}}, "'policy' was not trained to reflect; name"),
        ({"iterations": {"r": {"init": "policy", "reflector": "nobody"}}}, "'nobody' was not trained to reflect"),
        ({"iterations": {"r": {"init": "nowhere"}}}, "there is no model 'nowhere'; there are reflector, policy"),
        ({"iterations": {"a": {"init": "b"}, "b": {"init": "a"}}}, "the iterations form a cycle"),
        ({"iterations": {"policy": RUN}}, "the name is taken"),
        ({"iterations": {"a b": RUN}}, "letters, digits, _ and - only"),
        ({"engines": {"policy": ENGINE, "teacher": {"engine": "scripted"}}}, "'reflector' is missing"),
        (
            {"engines": {"policy": {"engine": "scripted"}, "reflector": ENGINE, "teacher": ENGINE}},
            "engines.policy: decodes over the very weights that reinforcement learning changes; use transformers",
        ),
        (
            {"engines": {"policy": VLLM, "reflector": ENGINE, "teacher": ENGINE}},
            "engines.policy: decodes over the very weights",
        ),
        (
            {"engines": {"policy": ENGINE, "reflector": {"engine": "scripted"}, "teacher": ENGINE}},
            "engines.reflector: a scripted engine is no model; use transformers, vllm or openai",
        ),
        (
            {"engines": {"policy": ENGINE, "reflector": {**VLLM, "model": "/m"}, "teacher": ENGINE}},
            "engines.reflector.model: every row would be evaluated with this one model",
        ),
        ({"evaluate": {"engine": "fast"}}, "evaluate.engine: there is no engine 'fast'"),
        ({"evaluate": {"engine": "teacher"}}, "evaluate.engine: has to hold the weights that are evaluated"),
        (
            {
                "engines": {"policy": ENGINE, "reflector": ENGINE, "teacher": {"engine": "scripted"}, "fast": VLLM},
                "evaluate": {"engine": "fast", "shrink_head": False},
            },
            "evaluate.engine: vllm chooses among labels only; set evaluate.shrink_head or evaluate.mask_invalid",
        ),
        ({"generate": {"teacher": "nobody"}}, "there is no engine 'nobody'; there are policy, reflector, teacher"),
        ({"agents": {"x": {"kind": "react"}}}, "kind 'react' needs an engine"),
        ({"agents": {"x": {"kind": "random", "engine": "policy"}}}, "kind 'random' asks no engine"),
        ({"agents": {"x": {"kind": "chat", "engine": "teacher"}}}, "a scripted engine is no chat model"),
        ({"report": {"window": 10}}, "window 10 has no middle"),
        ({"evaluate": {"sft_only": "sft"}}, "there is no model 'sft'"),
        ({"tasks": {"train": 4}}, "give train, dev and test, or none"),
        (
            {"env": {"name": "lake"}},
            "env: name: 'lake' is unknown; choose alfworld, autoexplore, taxi, or",
        ),
        ({"env": {"name": "taxi", "max_files": 20}}, "env: max_files is an option of autoexplore, and name is taxi;"),
        ({"env": {"name": "taxi", "thing": None}}, "thing is an option of alfworld, and name is taxi; remove it"),
        ({"env": {"name": "autoexplore", "mode": "pickup"}}, "mode is an option of taxi, and name is autoexplore"),
        ({"env": {"name": "taxi", "blacklist": "x"}}, "blacklist is an option of alfworld, and name is taxi"),
        ({"env": {"name": "alfworld", "games": "x"}}, "games is an option of textworld, and backend is kitchen"),
        ({"tasks": {"file": "x.json"}}, "tasks.file: taxi takes no tasks of a file or a teacher; remove it"),
        ({"tasks": {"teacher": "teacher"}}, "tasks.teacher: taxi takes no tasks of a file or a teacher"),
    ],
)
def test_reflect_rl_bad_input_params(changes: Any, said: str) -> None:
    base: dict[str, Any] = {"controls": {}} if "iterations" in changes else {}
    with pytest.raises(UserError) as refused:
        load(**base, **changes)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)
