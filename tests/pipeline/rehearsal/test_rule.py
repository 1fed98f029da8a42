"""The rule that turns a profile into its rehearsal, for every profile of the repository that can be rehearsed."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from selfimprove.pipeline.forks import uses_gpu
from selfimprove.pipeline.params import load_section
from selfimprove.pipeline.rehearsal.rule import (
    Here,
    Params,
    Replacement,
    rehearsable,
    rehearsed,
    uses_gpu_packages,
)
from selfimprove.pipeline.sections import SCHEMAS, spelled_out
from tests.support.profiles import NAMES, profile

ROOT = Path(__file__).resolve().parents[3]
PROFILES = {name: spelled_out(profile(name)) for name in NAMES}
REHEARSABLE = [name for name, params in PROFILES.items() if rehearsable(params)]
KEPT = {
    "engine", "kind", "zero_stage", "rank", "alpha", "targets", "quantize", "beta", "loss", "algorithm", "backend",
    "lr", "schedule", "optimizer", "reduction", "chat_template", "format", "few_shot", "judge",
}  # fmt: skip
"""Keys that no rehearsal changes: engines, launchers, adapters, objectives, prompts."""


def here(gpus: int = 0, **changes: Any) -> Here:
    """A machine with an existing model folder, so that the schemas accept it."""
    models = {} if gpus and not changes.get("quick") else dict.fromkeys(SCHEMAS, "selfimprove")
    return Here(gpus, models, "http://127.0.0.1:9/v1", "chats", "snippets.jsonl", **changes)


def rehearse(name: str, machine: Here) -> tuple[Params, list[Replacement]]:
    return rehearsed(PROFILES[name], rehearsable(PROFILES[name]), machine)


def leaves(node: Any, path: str = "") -> dict[str, Any]:
    """Dotted key -> value of everything that is not a mapping; list indices are keys too."""
    if isinstance(node, dict):
        return {k: v for key, value in node.items() for k, v in leaves(value, f"{path}.{key}").items()}
    if isinstance(node, list) and not isinstance(node, str):
        return {k: v for key, value in enumerate(node) for k, v in leaves(value, f"{path}.{key}").items()}
    return {path[1:]: node}


def under(key: str, places: set[str]) -> bool:
    return any(key == place or key.startswith(f"{place}.") for place in places)


@pytest.mark.parametrize(
    "machine", [here(), here(4), here(quick=True), here(1, quick=True)], ids=["cpu", "gpus", "quick", "quick-gpu"]
)
@pytest.mark.parametrize("name", REHEARSABLE)
def test_every_change_is_listed_and_every_listed_key_has_changed(name: str, machine: Here) -> None:
    before = deepcopy(PROFILES[name])
    own, made = rehearse(name, machine)
    assert PROFILES[name] == before
    old, new = leaves(PROFILES[name]), leaves(own)
    changed = {key for key in old.keys() | new.keys() if old.get(key, ...) != new.get(key, ...)}
    listed = {one.key for one in made}
    assert {key for key in changed if not under(key, listed)} == set()
    assert all(any(under(key, {place}) for key in changed) for place in listed)


@pytest.mark.parametrize("machine", [here(), here(quick=True)], ids=["cpu", "quick"])
@pytest.mark.parametrize("name", REHEARSABLE)
def test_the_schemas_accept_a_cpu_rehearsal_and_nothing_in_it_requires_a_gpu(
    name: str, machine: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)  # a base model must be an existing folder
    own, _ = rehearse(name, machine)
    for section, schema in SCHEMAS.items():
        load_section(own, section, schema, name)
    for method in rehearsable(PROFILES[name]):
        values = leaves(own[method])
        assert {v for k, v in values.items() if k.endswith((".device", ".dtype"))} <= {"cpu", "float32"}
        assert "flash_attention_2" not in values.values()
        assert not any(v for k, v in values.items() if k.endswith(".tf32"))
        assert all(v <= 2 for k, v in values.items() if k.endswith((".processes", ".nodes", ".tensor_parallel")))


@pytest.mark.parametrize("name", REHEARSABLE)
def test_engines_launchers_adapters_objectives_and_prompts_are_unchanged(name: str) -> None:
    own, made = rehearse(name, here())
    old, new = leaves(PROFILES[name]), leaves(own)
    for key, value in new.items():
        if key.rpartition(".")[2] in KEPT and key in old and not key.startswith("agent_r.iterations"):
            assert value == old[key], key
    changed = [one.key for one in made if one.key.endswith((".engine", ".kind"))]
    assert all(key.startswith("agent_r.iterations.") for key in changed), changed


@pytest.mark.parametrize("name", REHEARSABLE)
def test_with_gpus_the_model_the_data_types_and_the_kernels_are_unchanged(name: str) -> None:
    own, made = rehearse(name, here(8))
    assert own["base"] == PROFILES[name]["base"]
    assert own["run"] == PROFILES[name]["run"]
    assert {one.kind for one in made} <= {"size", "service", "data"}


def test_processes_never_exceed_the_available_gpus() -> None:
    own, _ = rehearse("spin-zephyr-7b", here(4))
    assert own["spin"]["rows"]["iter0"]["train"]["launcher"] == {
        "kind": "deepspeed", "processes": 4, "zero_stage": 3,
    }  # fmt: skip


def test_a_chain_of_iterations_is_shortened_and_controls_match_its_last_iteration() -> None:
    own, made = rehearse("agent-r-llama3.1-8b", here())
    assert list(own["agent_r"]["iterations"]) == ["iter1", "iter2"]
    assert {one["match"] for one in own["agent_r"]["rows"].values()} == {"none", "iter2"}
    assert Replacement("agent_r.rows.direct.match", "iter3", "iter2", "size") in made


def test_iterations_that_start_from_the_same_model_are_not_a_chain_and_are_all_kept() -> None:
    own, _ = rehearse("reflect-rl-gpt2-xl", here())
    assert own["reflect_rl"]["iterations"].keys() == PROFILES["reflect-rl-gpt2-xl"]["reflect_rl"]["iterations"].keys()


def test_a_quick_rehearsal_has_one_iteration_no_controls_and_no_downloads() -> None:
    for name in REHEARSABLE:
        own, _ = rehearse(name, here(quick=True))
        for method in rehearsable(PROFILES[name]):
            assert len(own[method]["iterations"]) == 1, name
            rows = own[method]["models" if method == "reflect_rl" else "rows"]
            assert {one["match"] for one in rows.values()} == {"none"}, name
            assert own[method]["tasks"].get("source", "embedded") in ("embedded", "encyclopedia", "chat")
    own, _ = rehearse("reflect-rl-gpt2-xl", here(quick=True))
    assert list(own["reflect_rl"]["models"]) == ["reflector", "policy"]


def test_a_quick_rehearsal_of_a_profile_with_an_expert_file_is_valid() -> None:
    params = deepcopy(PROFILES["spin-llama2-7b"])
    params["spin"]["tasks"]["expert_file"] = "experts.json"
    own, _ = rehearsed(params, ["spin"], here(quick=True))
    load_section(own, "spin", SCHEMAS["spin"], "own")


def test_a_training_with_zero_epochs_keeps_zero_epochs() -> None:
    own, _ = rehearse("agent-r-llama3.1-8b", here())
    assert own["agent_r"]["rows"]["base"]["train"]["epochs"] == 0
    assert "max_tokens" not in own["agent_r"]["rows"]["base"]["train"]


def test_in_agent_r_the_expert_searches_in_the_first_iteration_and_the_model_in_the_second() -> None:
    own, _ = rehearse("agent-r-llama3.1-8b", here())
    first, second = own["agent_r"]["iterations"].values()
    assert first["generate"]["engine"] == "rehearsal_expert"
    assert second["generate"].get("engine", "actor") == "actor"
    assert second["convert"]["accumulate"] is True  # it also trains on the trees of the first


def test_in_rise_without_a_teacher_the_expert_takes_the_last_turn_unless_the_profile_s_model_runs_on_gpus() -> None:
    own, _ = rehearse("rise-mistral-7b-selfdistill", here())
    assert own["rise"]["iterations"]["iter1"]["generate"]["models"] == ["student", "rehearsal_expert"]
    taught, _ = rehearse("rise-llama2-7b", here())
    assert taught["rise"]["iterations"]["iter1"]["generate"]["models"] == ["student", "teacher"]
    on_gpus, _ = rehearse("rise-mistral-7b-selfdistill", here(4))
    assert on_gpus["rise"]["iterations"]["iter1"]["generate"]["models"] == ["student", "student"]


def test_a_quick_rehearsal_on_a_gpu_trains_small_models_so_the_expert_takes_the_same_part_as_on_a_cpu() -> None:
    on_gpu, on_cpu = here(1, quick=True), here(quick=True)
    for name in REHEARSABLE:
        (_, made), (_, there) = rehearse(name, on_gpu), rehearse(name, on_cpu)
        kinds = ("model", "left out")
        assert [one for one in made if one.kind in kinds] == [one for one in there if one.kind in kinds], name
    own, made = rehearse("smollm2-gpu", on_gpu)
    assert own["agent_r"]["iterations"]["iter1"]["generate"]["engine"] == "rehearsal_expert"
    assert "device" not in {one.kind for one in made}
    own, _ = rehearse("rise-mistral-7b-selfdistill", on_gpu)
    assert own["rise"]["iterations"]["iter1"]["generate"]["models"] == ["student", "rehearsal_expert"]


@pytest.mark.parametrize(
    "machine", [here(), here(8), here(quick=True), here(1, quick=True)], ids=["cpu", "gpus", "quick", "quick-gpu"]
)
@pytest.mark.parametrize("name", REHEARSABLE)
def test_every_params_key_in_the_graph_exists_in_the_rehearsal(name: str, machine: Here) -> None:
    own, _ = rehearse(name, machine)
    graph = YAML(typ="safe", pure=True).load(ROOT / "dvc.yaml")["stages"].values()
    for key in {key for stage in graph for key in stage.get("do", stage).get("params", []) if "$" not in key}:
        node = own
        for part in key.split("."):
            assert part in node, key
            node = node[part]


def test_the_xtuner_backend_is_kept_and_trains_in_one_process_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    params = deepcopy(PROFILES["agent-r-llama3.1-8b"])
    for name in params["agent_r"]["iterations"]:
        params["agent_r"]["rows"][name]["train"] |= {
            "backend": "xtuner",
            "dtype": "float16",
            "tf32": False,
            "attention": "sdpa",
        }
    own, _ = rehearsed(params, ["agent_r"], here())
    section = load_section(own, "agent_r", SCHEMAS["agent_r"], "xtuner")
    trained = section.rows["iter1"].train  # type: ignore[attr-defined]
    assert (trained.backend, trained.dtype, trained.launcher.kind, trained.launcher.processes) == (
        "xtuner", "float32", "deepspeed", 1,
    )  # fmt: skip


def test_training_curves_are_not_sent_to_an_external_service() -> None:
    params = deepcopy(PROFILES["rise-24gb"]) | {"tracking": {"report_to": "wandb"}}
    own, made = rehearsed(params, ["rise"], here())
    assert own["tracking"] == {"report_to": "tensorboard"}
    assert Replacement("tracking.report_to", "wandb", "tensorboard", "service") in made


def test_methods_that_use_a_gpu_or_a_pretrained_model_can_be_rehearsed() -> None:
    assert rehearsable(PROFILES["default"]) == []
    assert rehearsable(PROFILES["spin-zephyr-7b"]) == ["spin"]
    assert not uses_gpu(PROFILES["spin-smollm2"])
    assert rehearsable(PROFILES["spin-smollm2"]) == ["spin"]


def test_only_vllm_and_quantised_weights_need_the_packages_for_gpus() -> None:
    own = PROFILES["smollm2-gpu"]
    assert not any(uses_gpu_packages(own[method]) for method in rehearsable(own))
    assert uses_gpu_packages(PROFILES["spin-zephyr-7b"]["spin"])
    quantised = {"rows": {"base": {"train": {"lora": {"rank": 8, "quantize": "4bit"}}}}}
    assert uses_gpu_packages(quantised)


def test_automatic_numbers_of_slots_are_capped_like_explicit_ones() -> None:
    params = deepcopy(PROFILES["reflect-rl-24gb"])
    params["reflect_rl"]["engines"]["policy"] |= {"slots": "auto", "prefill_rows": "auto"}
    policy = rehearsed(params, ["reflect_rl"], here())[0]["reflect_rl"]["engines"]["policy"]
    assert (policy["slots"], policy["prefill_rows"]) == (16, 4)
