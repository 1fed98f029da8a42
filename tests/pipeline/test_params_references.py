"""params.yaml: keys that refer to others, or contradict them, are refused with the key to change."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from selfimprove.core.errors import UserError
from selfimprove.methods.agent_r.params import AgentRParams
from selfimprove.methods.rise.params import RiseParams
from selfimprove.models.base import BaseParams
from selfimprove.pipeline.params import load_section
from tests.pipeline.test_params import DEFAULT, METHODS, SCHEMAS, complaint, drop, load_all, put
from tests.support.profiles import profile


@pytest.mark.parametrize(
    ("path", "engine"),
    [
        ("rise.iterations.iter1.generate.max_tokens", "student"),
        ("rise.evaluate.max_tokens", "student"),
        ("agent_r.evaluate.max_tokens", "actor"),
        ("agent_r.iterations.iter1.convert.judge_max_tokens", "actor"),
        ("reflect_rl.evaluate.max_tokens", "reflector"),
        ("reflect_rl.iterations.reflect_rl.rl.max_tokens", "reflector"),
    ],
)
def test_max_tokens_that_leave_no_room_for_a_prompt_are_refused(path: str, engine: str) -> None:
    method, key = path.split(".", 1)
    context = DEFAULT[method]["engines"][engine]["context"]

    def asked(tokens: int) -> Callable[[dict[str, Any]], object]:
        def change(values: dict[str, Any]) -> None:
            if key.endswith("judge_max_tokens"):
                values[method]["iterations"]["iter1"]["convert"]["judge"] = "actor"
            put(path, tokens)(values)

        return change

    said = f"{key}: {context} tokens leave no room for a prompt in engines.{engine}.context {context}"
    assert said in complaint(asked(context))
    values = copy.deepcopy(DEFAULT)
    asked(context - 1)(values)
    load_all(values)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("rise.iterations.iter2.generate.offset", 13, "iterations.iter2.generate: offset 13 + tasks 12 exceeds"),
        ("agent_r.iterations.iter2.generate.tasks", 13, "iterations.iter2.generate: offset 0 + tasks 13 exceeds"),
        (
            "spin.iterations.iter1.generate.end",
            25,
            "iterations.iter1.generate.end: 25 exceeds tasks.train, which is 24",
        ),
        ("rise.iterations.iter2.init", "iter7", "iterations.iter2.init: there is no iteration 'iter7'"),
        (
            "rise.rows.iter2.init",
            "iter2",
            "rows.iter2.init: is 'iter2', but must be 'iter1' or",
        ),
        ("rise.iterations.iter1.generate.models", ["student", "techer"], "there is no engine 'techer'; choose one of"),
        (
            "rise.iterations.iter1.generate.num_of_samples",
            [1],
            "num_of_samples: has 1 entries, but max_turns is 2; give one per turn",
        ),
        (
            "rise.iterations.iter1.generate.models",
            ["student"] * 3,
            "models: has 3 entries, but max_turns is 2; give one per turn",
        ),
        (
            "rise.iterations.iter1.generate.num_of_samples",
            [1, 0],
            "num_of_samples: every entry must be between 1 and 10000",
        ),
        ("rise.rows.more_sft.match", "iter9", "rows.more_sft.match: there is no iteration 'iter9'"),
        ("rise.tasks.source", "files", "files: must be set if source is 'files', and only then"),
        ("rise.tasks.files", {"test": "x.jsonl"}, "files: must be set if source is 'files', and only then"),
        ("agent_r.iterations.iter2.init", "iter7", "iterations.iter2.init: there is no iteration 'iter7'"),
        ("agent_r.rows.iter1.init", "iter2", "rows.iter1.init: is 'iter2', but must be 'base' for an iteration's row"),
        ("agent_r.rows.more_sft.data", "good", "rows.more_sft.data: base has no data set 'good'; name another"),
        (
            "agent_r.iterations.iter1.generate.engine",
            "gpt",
            "iterations.iter1.generate.engine: there is no engine 'gpt'; choose one of actor, expert",
        ),
        ("agent_r.rows.direct.match", "iter9", "rows.direct.match: there is no iteration 'iter9'; choose one of"),
        ("agent_r.env", {"name": "webshop"}, "tasks.layouts: webshop has only one layout per task; set 1"),
        ("agent_r.engines.actor", {"engine": "scripted"}, "engines.actor: a scripted engine has no model"),
        ("rise.engines.student", {"engine": "scripted"}, "engines.student: a scripted engine has no model"),
        ("agent_r.iterations", {}, "agent_r.iterations"),
    ],
)
def test_unknown_references_and_settings_that_contradict_each_other_are_refused(
    path: str, value: Any, said: str
) -> None:
    def change(values: dict[str, Any]) -> None:
        values["agent_r"]["tasks"]["layouts"] = 2
        put(path, value)(values)

    assert said in complaint(change)


@pytest.mark.parametrize("method", METHODS)
def test_a_cycle_of_iterations_is_reported(method: str) -> None:
    def change(values: dict[str, Any]) -> None:
        values[method]["iterations"]["iter1"]["init"] = "iter2"

    assert "the iterations form a cycle (iter1 <- iter2 <- iter1)" in complaint(change)
    own = complaint(lambda values: values[method]["iterations"]["iter1"].update(init="iter1"))
    assert "the iterations form a cycle (iter1 <- iter1)" in own


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("name", ["start", "none", "tasks", "a/b", "..", "a b"])
def test_row_names_that_are_reserved_or_not_valid_folder_names_are_refused(method: str, name: str) -> None:
    def change(values: dict[str, Any]) -> None:
        values[method]["rows"][name] = values[method]["rows"]["more_sft"]

    assert f"rows.{name}: " in complaint(change)


def test_the_student_engine_which_evaluation_uses_is_required() -> None:
    def change(values: dict[str, Any]) -> None:
        values["rise"]["engines"]["pupil"] = values["rise"]["engines"].pop("student")
        for iteration in values["rise"]["iterations"].values():
            iteration["generate"]["models"] = ["pupil", "pupil"]

    assert "engines: 'student'" in complaint(change)


def test_the_actor_engine_for_search_judging_and_evaluation_is_required() -> None:
    assert "engines: 'actor', the engine for search, judging and evaluation, is missing" in complaint(
        drop("agent_r.engines.actor")
    )


def test_a_hub_model_needs_a_revision_and_a_folder_does_not(tmp_path: Path) -> None:
    said = complaint(put("base.rise.model", "org/model"))
    assert said.startswith(
        "params.yaml: base.rise: model 'org/model' is not a folder; for a hub model, set revision too"
    )
    assert BaseParams(model=str(tmp_path)).model == str(tmp_path)
    assert complaint(put("base.rise.model", "x" * 300)).startswith("params.yaml: base.rise: model 'xxx")


def test_a_chat_template_without_a_model_is_refused() -> None:
    said = complaint(put("base.spin.chat_template", "zephyr"))
    assert "base.spin: chat_template requires model; for the small model, set tokenizer.<method>.template" in said


@pytest.mark.parametrize("method", METHODS)
def test_an_iteration_s_lineage_is_oldest_first(method: Any) -> None:
    params = {"rise": RiseParams, "agent_r": AgentRParams}[method].model_validate(DEFAULT[method])  # type: ignore[attr-defined]
    assert (params.lineage("iter2"), params.lineage("base")) == (["iter1", "iter2"], [])


@pytest.mark.parametrize("method", METHODS)
def test_an_evaluation_on_a_split_without_tasks_is_refused(method: str) -> None:
    values = profile("smoke")
    values[method]["tasks"]["dev"] = 0
    values[method]["evaluate"]["split"] = "dev"
    with pytest.raises(UserError, match=f"{method}: evaluate.split: is dev, but tasks.dev is 0"):
        load_section(values, method, SCHEMAS[method], "params.yaml")
