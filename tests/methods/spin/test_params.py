"""The ``spin`` section: what does not fit is refused in one sentence."""

from typing import Any

import pytest
from pydantic import ValidationError

from selfimprove.methods.spin.params import SpinParams

TRAIN = {"epochs": 1, "lr": 1e-4}


def section(**more: Any) -> dict[str, Any]:
    """A whole section, smallest."""
    return {
        "tasks": {"train": 4, "dev": 0, "test": 2},
        "engines": {"policy": {"engine": "transformers"}},
        "sft": {},
        "evaluate": {},
        "iterations": {
            "iter0": {"init": "base", "init_from": "base", "generate": {"runs": 2}, "finetune": TRAIN},
            "iter1": {"init": "iter0", "init_from": "iter0", "generate": {}, "finetune": {**TRAIN, "beta": 5.0}},
        },
        "controls": {
            "more_sft": {"data": "demonstrations", "match": "iter1", "finetune": {}},
            "outcome_dpo": {"data": "outcome", "source": "iter0", "match": "iter1", "finetune": TRAIN},
        },
    } | more


def iteration(**more: Any) -> dict[str, Any]:
    return {"init": "base", "init_from": "base", "generate": {}, "finetune": TRAIN} | more


def test_every_iteration_has_its_own_lr_beta_and_epochs() -> None:
    spin = SpinParams.model_validate(section())
    assert (spin.iterations["iter0"].finetune.beta, spin.iterations["iter1"].finetune.beta) == (0.1, 5.0)
    assert spin.lineage("iter1") == ["iter0", "iter1"]
    assert SpinParams.model_validate(section()).iterations["iter0"].convert.mix.seed == 42


def test_the_defaults_are_the_specs() -> None:
    cfg = SpinParams.model_validate(section()).iterations["iter1"].generate
    assert (cfg.max_turns, cfg.retries, cfg.max_tokens, cfg.temperature, cfg.shuffled) == (11, 5, 1000, 1.0, True)
    assert SpinParams.model_validate(section()).evaluate.temperature == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"iterations": {"iter0": iteration(init="iter7", init_from="iter7")}}, "there is no iteration 'iter7'"),
        ({"iterations": {"a": iteration(init="b", init_from="b"), "b": iteration(init="a", init_from="a")}}, "cycle"),
        ({"iterations": {"iter0": iteration(init_from="iter0")}}, "a player starts as its opponent"),
        ({"iterations": {"base": iteration()}}, "the name is taken"),
        ({"iterations": {"more_sft": iteration()}}, "the name is taken"),
        ({"iterations": {"a/b": iteration()}}, "letters, digits"),
        (
            {"controls": {"more_sft": {"data": "demonstrations", "match": "iter9", "finetune": {}}}},
            "no iteration 'iter9'",
        ),
        (
            {"controls": {"dpo": {"data": "outcome", "source": "iter1", "match": "iter1", "finetune": TRAIN}}},
            "iter1 has one run a question",
        ),
        ({"engines": {"teacher": {"engine": "scripted"}}}, "'policy', which plays and is evaluated, is missing"),
        ({"engines": {"policy": {"engine": "scripted"}}}, "a scripted engine has no model"),
        ({"engines": {"policy": {"engine": "openai", "base_url": "http://x", "model": "m"}}}, "set chat"),
        ({"tasks": {"train": 4, "dev": 0, "test": 2, "file": "x"}}, "for source chat, and only for it"),
        (
            {"tasks": {"source": "chat", "train": 4, "dev": 0, "test": 2, "file": "x"}},
            "for source chat, and only for it",
        ),
        (
            {
                "tasks": {"source": "chat", "train": 4, "dev": 0, "test": 2, "file": "x"},
                "prompt": {"format": "reply", "few_shot": "default"},
            },
            "plain SPIN has no worked episodes",
        ),
        ({"evaluate": {"start": 5, "end": 5}}, "end: 5 is not after start 5"),
        ({"evaluate": {"evaluate": False}}, "an evaluation without scores has no results to report; set true"),
        ({"engines": {"policy": {"engine": "transformers", "model": "models/mine"}}}, "every row would be evaluated"),
        ({"engines": {"policy": {"engine": "vllm", "chat_template": "zephyr"}}}, "set base.spin.chat_template"),
        ({"tools": {"use": {"finish": "local"}}}, "can't be a tool's name"),
        ({"sft": {"epoch": 1}}, "Extra inputs"),
    ],
)
def test_what_does_not_fit_is_refused(change: Any, words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        SpinParams.model_validate(section(**change))


def test_prefix_and_worked_episodes_are_the_asked_task_s() -> None:
    tasks = {"train": 4, "dev": 0, "test": 2}
    prompt = {"question_prefix": "Yes or no: "}
    alone = SpinParams.model_validate(section(tasks=tasks, prompt=prompt))
    assert [alone.asked(split) for split in ("train", "test")] == [("encyclopedia", "Yes or no: ")] * 2
    tasks["other"] = {"task": "strategyqa", "split": "dev"}  # type: ignore[assignment]
    other = SpinParams.model_validate(section(tasks=tasks, prompt=prompt))
    assert [other.asked(split) for split in ("train", "dev", "test")] == [
        ("encyclopedia", ""), ("encyclopedia", ""), ("strategyqa", "Yes or no: "),
    ]  # fmt: skip


def test_an_endpoint_plays_in_chat_format() -> None:
    endpoint = {"policy": {"engine": "openai", "base_url": "http://x", "model": "m"}}
    assert SpinParams.model_validate(section(engines=endpoint, prompt={"format": "chat"})).prompt.format == "chat"
