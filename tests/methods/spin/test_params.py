"""The ``spin`` section: inconsistent values are refused with a message that names the key."""

from typing import Any

import pytest
from pydantic import ValidationError

from selfimprove.methods.spin.params import QuestionsParams, SpinParams
from tests.support.profiles import profile

TRAIN = {"epochs": 1, "lr": 1e-4}


def section(**more: Any) -> dict[str, Any]:
    """A minimal complete section."""
    return {
        "tasks": {"train": 4, "dev": 0, "test": 2},
        "engines": {"policy": {"engine": "transformers", "context": 2048}},
        "evaluate": {},
        "iterations": {"iter0": {"init": "base", "generate": {"runs": 2}}, "iter1": {"init": "iter0", "generate": {}}},
        "rows": ROWS,
    } | more


def pairs(name: str, init: str = "base", **more: Any) -> dict[str, Any]:
    """An iteration's row."""
    return {"init": init, "source": name, "data": "pairs", "match": "none", "train": TRAIN} | more


BASE: dict[str, Any] = {"init": "start", "source": "base", "data": "examples", "match": "none"}
ROWS: dict[str, dict[str, Any]] = {
    "base": BASE,
    "more_sft": {**BASE, "init": "base", "match": "iter1"},
    "outcome_dpo": {"init": "base", "source": "iter0", "data": "outcome", "match": "iter1", "train": TRAIN},
    "iter0": pairs("iter0"),
    "iter1": pairs("iter1", "iter0", train={**TRAIN, "beta": 5.0}),
}


def iterations(**inits: str) -> dict[str, Any]:
    """Changes that leave only the base's row and those of these iterations, each with its ``init``."""
    return {
        "iterations": {name: {"init": init, "generate": {}} for name, init in inits.items()},
        "rows": {"base": BASE, **{name: pairs(name, init) for name, init in inits.items()}},
    }


def rows(name: str, **more: Any) -> dict[str, Any]:
    """Changes to one row."""
    return {"rows": {**ROWS, name: {**ROWS[name], **more}}}


def plays(name: str, **generate: Any) -> dict[str, Any]:
    """Changes to the self-play of one iteration."""
    whole = section()["iterations"]
    return {"iterations": {**whole, name: {**whole[name], "generate": generate}}}


def test_every_iteration_has_its_own_training_params() -> None:
    spin = SpinParams.model_validate(section())
    assert [spin.rows[name].train.model_dump()["beta"] for name in ("iter0", "iter1")] == [0.1, 5.0]
    assert spin.lineage("iter1") == ["iter0", "iter1"]
    assert SpinParams.model_validate(section()).iterations["iter0"].convert.mix.seed == 42


def test_the_defaults_match_the_specification() -> None:
    cfg = SpinParams.model_validate(section()).iterations["iter1"].generate
    assert (cfg.max_turns, cfg.retries, cfg.max_tokens, cfg.temperature, cfg.shuffled) == (11, 5, 1000, 1.0, True)
    assert SpinParams.model_validate(section()).evaluate.temperature == 0
    train = SpinParams.model_validate(section()).pairs
    assert (train.loss, train.reference_free, train.average) == ("sigmoid", False, False)
    assert (train.overlong, train.truncation, train.max_prompt_length) == ("drop", "keep_end", None)


def test_the_profile_of_plain_spin_has_the_published_schedule() -> None:
    params = profile("spin-zephyr-7b")
    spin = SpinParams.model_validate(params["spin"])
    rows = [spin.rows[f"iter{number}"] for number in range(4)]
    assert [row.init for row in rows] == ["base", "iter0", "iter1", "iter2"]
    trains = [row.train.model_dump() for row in rows]
    assert [(train["lr"], train["beta"]) for train in trains] == [(5e-7, 0.1), (5e-7, 0.1), (1e-7, 0.1), (1e-7, 5.0)]
    shared = {
        "loss": "sigmoid", "sft_weight": 0, "optimizer": "rmsprop", "weight_decay": 0, "batch_size": 64, "epochs": 2,
        "schedule": "linear", "warmup_ratio": 0.1, "warmup_steps": 0, "max_length": 2048, "dtype": "bfloat16",
        "lora": None,
    }  # fmt: skip
    assert [{key: train[key] for key in shared} for train in trains] == [shared] * 4
    assert (params["run"]["seed"], spin.tasks.train) == (42, 50_000)
    for iteration in spin.iterations.values():
        play, mix = iteration.generate, iteration.convert.mix
        assert (play.start, play.end, play.temperature, play.top_p, play.max_tokens) == (0, None, 1, 1, 256)
        assert (mix.own, mix.previous, mix.seed) == (1, 1, 42)


def test_the_warm_start_of_the_llama_profile_has_fireacts_recipe() -> None:
    params = profile("spin-llama2-7b")
    spin = SpinParams.model_validate(params["spin"])
    train = spin.rows["base"].train.model_dump()
    want = {"lr": 3e-4, "epochs": 30, "warmup_steps": 100, "validation": 0.01, "batch_size": 32}
    assert {key: train[key] for key in want} == want
    adapter = {"rank": 8, "alpha": 16, "dropout": 0.05, "targets": ["q_proj", "v_proj"], "quantize": "8bit"}
    assert {key: train["lora"][key] for key in adapter} == adapter
    assert (params["base"]["spin"]["model"], spin.tasks.train) == ("meta-llama/Llama-2-7b-chat-hf", 500)
    # The published sample: the first 500 questions of the shuffled dev set.
    other, play = spin.tasks.other, spin.evaluate
    assert other is not None
    assert (other.task, other.split, spin.tasks.test) == ("hotpotqa", "dev", 7405)
    assert (play.start, play.end, play.shuffled, play.temperature) == (0, 500, True, 0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (iterations(iter0="iter7"), "there is no iteration 'iter7'"),
        (iterations(a="b", b="a"), "cycle"),
        (rows("iter1", init="base"), "rows.iter1.init: must be 'iter0', as in iterations.iter1.init, because training"),
        (iterations(base="base"), "iterations.base: is the name of the warm start; choose another name"),
        (iterations(start="base"), "rows.start: the name is taken"),
        (iterations(none="base"), "rows.none: the name is taken"),
        (iterations(**{"a/b": "base"}), "letters, digits"),
        ({"rows": {"base": BASE}}, "iterations.iter0: has no row; add rows.iter0"),
        ({"rows": {name: ROWS[name] for name in ("iter0", "iter1")}}, "rows: 'base', the warm start, is missing; add"),
        (
            {**iterations(iter0="base"), "rows": {"base": BASE, "iter0": pairs("iter0"), "iter1": pairs("iter1")}},
            "rows.iter1.match: is none, but iterations has no 'iter1'; add it",
        ),
        (rows("base", init="base"), "rows.base.init: is 'base', but must be 'start' for the warm start"),
        (rows("iter1", source="iter0"), "rows.iter1.source: is 'iter0', but must be 'iter1' for an iteration's row"),
        (rows("iter1", match="iter0"), "rows.iter1.match: is 'iter0', but must be 'none' for an iteration's row"),
        (rows("more_sft", init="iter0"), "rows.more_sft.init: is 'iter0', but must be 'base' for a control"),
        (rows("more_sft", match="iter9"), "rows.more_sft.match: there is no iteration 'iter9'"),
        (
            rows("more_sft", source="iter9"),
            "rows.more_sft.source: there is no data of 'iter9'; choose one of base, iter0",
        ),
        (rows("more_sft", source="iter0"), "rows.more_sft.data: iter0 has no data set 'examples'; name another"),
        (rows("outcome_dpo", source="base"), "rows.outcome_dpo.data: base has no data set 'outcome'; name another"),
        (
            rows("outcome_dpo", source="iter1"),
            "rows.outcome_dpo.source: iter1 plays each question once",
        ),
        (
            {"engines": {"teacher": {"engine": "scripted"}}},
            "'policy', the engine for self-play and evaluation, is missing",
        ),
        ({"engines": {"policy": {"engine": "scripted"}}}, "a scripted engine has no model"),
        ({"engines": {"policy": {"engine": "openai", "base_url": "http://x", "model": "m"}}}, "set chat"),
        ({"tasks": {"train": 4, "dev": 0, "test": 2, "file": "x"}}, "if source is chat, and only then"),
        (
            {"tasks": {"source": "chat", "train": 4, "dev": 0, "test": 2, "file": "x"}},
            "must be reply \\(plain SPIN\\) if tasks.source is chat",
        ),
        (
            {
                "tasks": {"source": "chat", "train": 4, "dev": 0, "test": 2, "file": "x"},
                "prompt": {"format": "reply", "few_shot": "default"},
            },
            "plain SPIN has no worked episodes",
        ),
        (
            {"tasks": {"train": 4, "dev": 0, "test": 2, "expert_file": "x"}},
            "expert_file: is used only with source hotpotqa and",
        ),
        (
            {
                "tasks": {
                    "source": "hotpotqa",
                    "experts": "scripted",
                    "train": 4,
                    "dev": 0,
                    "test": 2,
                    "expert_file": "x",
                }
            },
            "expert_file: is used only with source hotpotqa and experts gpt-4 or both; set null",
        ),
        ({"evaluate": {"start": 5, "end": 5}}, "end: 5 must be greater than start, which is 5"),
        ({"evaluate": {"end": 3}}, "evaluate.end: 3 exceeds tasks.test, which is 2; change one"),
        ({"evaluate": {"start": 2}}, "evaluate.start: 2 must be below tasks.test, which is 2; change one"),
        (
            {"evaluate": {"max_tokens": 2048}},
            "evaluate.max_tokens: 2048 tokens leave no room for a prompt in engines.policy.co",
        ),
        (
            plays("iter1", start=4),
            "iterations.iter1.generate.start: 4 must be below tasks.train, which is 4; change one",
        ),
        (plays("iter1", end=5), "iterations.iter1.generate.end: 5 exceeds tasks.train, which is 4; change one"),
        (
            plays("iter1", max_tokens=4000),
            "iterations.iter1.generate.max_tokens: 4000 tokens leave no room for a prompt",
        ),
        (
            plays("iter0", runs=2, evaluate=False),
            "rows.outcome_dpo.source: the episodes of iter0 are not scored, so there are no outcome pairs",
        ),
        ({"evaluate": {"evaluate": False}}, "an evaluation without scores has no results to report; set true"),
        ({"engines": {"policy": {"engine": "transformers", "model": "models/mine"}}}, "every row would be evaluated"),
        ({"engines": {"policy": {"engine": "vllm", "chat_template": "zephyr"}}}, "set base.spin.chat_template"),
        ({"tools": {"use": {"finish": "local"}}}, "is not a valid tool name"),
        (rows("base", train={"epoch": 1}), "Extra inputs"),
    ],
)
def test_inconsistent_params_are_refused(change: Any, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        SpinParams.model_validate(section(**change))


def test_worked_episodes_and_question_prefix_depend_on_the_task_of_each_split() -> None:
    tasks = {"train": 4, "dev": 0, "test": 2}
    prompt = {"question_prefix": "Yes or no: "}
    alone = SpinParams.model_validate(section(tasks=tasks, prompt=prompt))
    assert [alone.asked(split) for split in ("train", "test")] == [("encyclopedia", "Yes or no: ")] * 2
    tasks["other"] = {"task": "strategyqa", "split": "dev"}  # type: ignore[assignment]
    other = SpinParams.model_validate(section(tasks=tasks, prompt=prompt))
    assert [other.asked(split) for split in ("train", "dev", "test")] == [
        ("encyclopedia", ""), ("encyclopedia", ""), ("strategyqa", "Yes or no: "),
    ]  # fmt: skip


def test_an_endpoint_is_accepted_with_the_chat_format() -> None:
    endpoint = {"policy": {"engine": "openai", "base_url": "http://x", "model": "m"}}
    assert SpinParams.model_validate(section(engines=endpoint, prompt={"format": "chat"})).prompt.format == "chat"


PLAIN = {"prompt": {"format": "reply"}}
"""Params that plain SPIN requires."""


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"env": {"name": "textcraft"}, "tasks": {"source": "hotpotqa"}},
            "tasks.source: applies only to env.name questions; text",
        ),
        (
            {"env": {"name": "webshop"}, "play_tools": {}},
            "play_tools: applies only to env.name questions; webshop has its own",
        ),
        (
            {"env": {"name": "taxi"}, "prompt": {"question_prefix": "Q "}},
            "prompt.question_prefix: applies only to env.name questions",
        ),
        (
            {"env": {"name": "textcraft"}, **PLAIN},
            "prompt.format: must be reply (plain SPIN) if tasks.source is chat or env has problems, and only then",
        ),
        ({"env": {"name": "gsm8k"}}, "prompt.format: gsm8k expects a single answer, as in plain SPIN; set reply"),
        ({"env": {"name": "math"}, **PLAIN}, "tasks.source: math has no problems of its own; set gsm8k or math"),
        (
            {"env": {"name": "gsm8k"}, "tasks": {"source": "math"}, **PLAIN},
            "is math, but env.name is gsm8k; set both",
        ),
        (
            {"tasks": {"source": "gsm8k"}},
            "tasks.source: gsm8k has problems with one right answer; set env.name: gsm8k",
        ),
        ({"env": {"name": "chess"}}, "name: 'chess' is unknown; choose"),
        ({"env": {"name": "gsm8"}}, "name: 'gsm8' is unknown; did you mean 'gsm8k'?"),
        ({"env": {"name": "questions", "seed": 3}}, "seed"),
        ({"env": {"name": "textcraft", "jvms": 4}}, "jvms is an option of sciworld, but name is textcraft; remove it"),
        ({"env": {"name": "no.where:Env"}}, "module 'no.where' cannot be imported"),
        ({"env": "textcraft"}, "expected a section with the key name"),
    ],
)
def test_params_that_do_not_suit_the_environment_are_refused(changes: dict[str, Any], said: str) -> None:
    values = section(**{**changes, "tasks": {"train": 4, "dev": 0, "test": 2, **changes.get("tasks", {})}})
    with pytest.raises(ValidationError) as refused:
        SpinParams.model_validate(values)
    assert said in str(refused.value)


def test_an_expert_file_is_accepted_for_hotpotqa() -> None:
    for experts in ("gpt-4", "both"):
        tasks = {
            "source": "hotpotqa", "experts": experts, "train": 4, "dev": 0, "test": 2, "expert_file": "x"
        }  # fmt: skip
        assert SpinParams.model_validate(section(tasks=tasks)).tasks.expert_file == "x"


def test_the_default_environment_is_questions() -> None:
    spin = SpinParams.model_validate(section())
    assert spin.env == SpinParams.model_validate(section(env={"name": "questions"})).env == QuestionsParams()
    acted = SpinParams.model_validate(section(env={"name": "textcraft", "seed": 3}))
    assert acted.asked("test") == ("textcraft", "")
