"""RISE's params can express the paper's settings (more tests of params: tests/pipeline/test_params.py)."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from selfimprove.methods.rise.params import EvaluateParams, GenerateParams, RiseParams
from tests.support.profiles import NAMES, profile


def rise(name: str) -> RiseParams:
    return RiseParams.model_validate(profile(name)["rise"])


def test_models_and_num_of_samples_have_one_entry_per_turn() -> None:
    made = GenerateParams(tasks=1, max_turns=2, models=["student", "teacher"], num_of_samples=[1, 16])
    assert (made.models, made.num_of_samples) == (["student", "teacher"], [1, 16])
    faults: list[dict[str, Any]] = [{"models": ["s"]}, {"num_of_samples": [1, 2, 3]}, {"num_of_samples": [1, 0]}]
    for wrong in faults:
        with pytest.raises(ValidationError):
            GenerateParams(**{"tasks": 1, "max_turns": 2, "models": ["a", "b"], "num_of_samples": [1, 1], **wrong})


def test_evaluation_defaults_to_the_original_s_settings() -> None:
    made = EvaluateParams()
    assert (made.max_turns, made.context_window, made.parallel_samples, made.oracle) == (5, 5, 5, False)
    assert (made.temperature, made.top_p, made.max_tokens, made.dialogue_limit) == (1.0, 1.0, 1000, 20)


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("arena-")])
def test_every_profile_but_the_arenas_evaluates_with_the_paper_s_window_of_two_turns(
    name: str,
) -> None:
    assert rise(name).evaluate.model_dump(exclude_unset=True)["context_window"] == 2


def test_a_row_may_name_the_previous_iteration_or_the_base_whatever_model_collected_its_data() -> None:
    values = RiseParams.spelled_out(profile("default")["rise"])
    for init in ("iter1", "base"):
        values["rows"]["iter2"]["init"] = init
        made = RiseParams.model_validate(values)
        assert (made.rows["iter2"].init, made.lineage("iter2")) == (init, ["iter1", "iter2"])


def test_the_paper_s_profile_has_the_paper_s_settings() -> None:
    made = rise("rise-llama2-7b")
    first = made.iterations["iter1"]
    assert (first.generate.models, first.generate.num_of_samples) == (["student", "teacher"], [1, 1])
    assert made.engines["teacher"].engine == "openai"
    tune = made.rows["iter1"].train
    assert (tune.lr, tune.batch_size, tune.max_length, tune.warmup_ratio) == (1e-5, 64, 2048, 0.04)
    assert (tune.schedule, tune.launcher.kind, tune.launcher.zero_stage) == ("cosine", "deepspeed", 3)
    assert (first.convert.reward_temperature, made.evaluate.context_window) == (0.4, 2)


def test_the_self_distillation_profile_takes_the_best_of_sixteen() -> None:
    first = rise("rise-mistral-7b-selfdistill").iterations["iter1"]
    assert (first.generate.models, first.generate.num_of_samples) == (["student", "student"], [1, 16])
