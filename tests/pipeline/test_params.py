"""params.yaml: closed schemas at every level, and for every invalid value one sentence that names its key."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfimprove.core.errors import UserError
from selfimprove.core.tracking import TrackingParams
from selfimprove.engines.config import OpenAiEngineConfig
from selfimprove.methods.agent_r.params import AgentRParams
from selfimprove.methods.reflect_rl.params import ReflectRLParams
from selfimprove.methods.rise.params import RiseParams
from selfimprove.methods.spin.params import SpinParams
from selfimprove.models.base import BaseParams, BaseSection
from selfimprove.models.tokenizer import TokenizerSection
from selfimprove.pipeline.params import SECTIONS, RunParams, load_section, named_paths, section_faults
from tests.support.profiles import profile

ROOT = Path(__file__).resolve().parents[2]
SCHEMAS: dict[str, Any] = {
    "run": RunParams,
    "tracking": TrackingParams,
    "tokenizer": TokenizerSection,
    "base": BaseSection,
    "rise": RiseParams,
    "agent_r": AgentRParams,
    "reflect_rl": ReflectRLParams,
    "spin": SpinParams,
}
METHODS = ("rise", "agent_r")
DEFAULT = profile("smoke")


def complaint(change: Callable[[dict[str, Any]], object]) -> str:
    """The error message of the first invalid section after a change to the smoke profile."""
    values = copy.deepcopy(DEFAULT)
    change(values)
    with pytest.raises(UserError) as caught:
        load_all(values)
    sentence = str(caught.value)
    assert "\n" not in sentence
    return sentence


def load_all(values: dict[str, Any]) -> None:
    for name in SECTIONS:
        load_section(values, name, SCHEMAS[name], "params.yaml")


def put(path: str, value: Any) -> Callable[[dict[str, Any]], object]:
    def change(values: dict[str, Any]) -> None:
        *keys, last = path.split(".")
        for key in keys:
            values = values[key]
        values[last] = value

    return change


def drop(path: str) -> Callable[[dict[str, Any]], object]:
    def change(values: dict[str, Any]) -> None:
        *keys, last = path.split(".")
        for key in keys:
            values = values[key]
        del values[last]

    return change


@pytest.mark.parametrize(
    ("path", "nearest"),
    [
        ("run.sead", "seed"),
        ("tokenizer.rise.vocabsize", "vocab_size"),
        ("base.rise.arch.layer", "layers"),
        ("rise.iteration", "iterations"),
        ("rise.tasks.trian", "train"),
        ("rise.env.extractor", "extraction"),
        ("rise.engines.student.slot", "slots"),
        ("rise.engines.teacher.eror_rate", "error_rate"),
        ("rise.rows.base.train.batchsize", "batch_size"),
        ("rise.evaluate.max_turn", "max_turns"),
        ("rise.rows.iter1.trains", "train"),
        ("rise.iterations.iter1.generate.num_samples", "num_of_samples"),
        ("rise.iterations.iter2.convert.criterion", "criteria"),
        ("rise.rows.iter2.train.save_step", "save_steps"),
        ("rise.rows.more_sft.train.epoch", "epochs"),
        ("rise.rows.base.train.launcher", "launcher"),
        ("agent_r.iteration", "iterations"),
        ("agent_r.env.servers", "server"),
        ("agent_r.tasks.layout", "layouts"),
        ("agent_r.engines.actor.contex", "context"),
        ("agent_r.engines.expert.error", "error_rate"),
        ("agent_r.rows.base.train.epoch", "epochs"),
        ("agent_r.evaluate.max_turn", "max_turns"),
        ("agent_r.rows.iter1.inits", "init"),
        ("agent_r.iterations.iter1.generate.dive", "dives"),
        ("agent_r.iterations.iter2.convert.alfa", "alpha"),
        ("agent_r.rows.iter2.train.batchsize", "batch_size"),
        ("agent_r.rows.direct.matches", "match"),
    ],
)
def test_an_unknown_key_is_reported_with_its_full_path_and_the_nearest_valid_key(path: str, nearest: str) -> None:
    if path.endswith("launcher"):
        path, nearest = "rise.rows.base.train.launcher.proceses", "processes"
        sentence = complaint(put("rise.rows.base.train.launcher", {"kind": "torchrun", "proceses": 2}))
    else:
        sentence = complaint(put(path, 1))
    assert sentence.startswith(f"params.yaml: {path}: unknown key")
    assert f"did you mean {nearest!r}?" in sentence


@pytest.mark.parametrize(
    "path",
    ["run.gpus", "run.worker", "rise.evaluate.temp", "reflect_rl.rl.gamma", "reflect_rl.rl.learning_rate"],
)
def test_a_key_that_only_another_section_knows_is_not_suggested(path: str) -> None:
    sentence = complaint(put(path, 1))
    known = {"rise.evaluate.temp": "did you mean 'temperature'?"}
    assert sentence == f"params.yaml: {path}: unknown key; {known.get(path, 'remove it or fix its name.')}"


def test_a_reference_into_an_empty_section_and_a_list_in_place_of_an_environment_are_reported_in_plain_words() -> None:
    said = complaint(put("rise.engines", {}))
    assert said == "params.yaml: rise: iterations.iter1.generate.models: there is no engine 'student'; add it."
    assert complaint(put("agent_r.env", [])).startswith("params.yaml: agent_r.env.parts: list should have at least 2")


def test_an_unknown_key_below_a_key_that_is_a_number_is_reported() -> None:
    row = {"init": "base", "source": "base", "data": "examples", "mach": "iter2"}
    sentence = complaint(lambda values: values["rise"]["rows"].update({1: row}))
    assert sentence == "params.yaml: rise.rows.1.mach: unknown key; did you mean 'match'?"


@pytest.mark.parametrize(
    ("method", "name", "nearest"),
    [
        ("rise", "gsm8", "gsm8k"),
        ("agent_r", "webshp", "webshop"),
        ("reflect_rl", "txi", "taxi"),
        ("spin", "hotpot", "hotpotqa"),
    ],
)
def test_an_unknown_environment_is_reported_with_the_nearest_valid_name(method: str, name: str, nearest: str) -> None:
    said = complaint(put(f"{method}.env", {"name": name}))
    assert said == f"params.yaml: {method}.env: name: {name!r} is unknown; did you mean {nearest!r}?"


@pytest.mark.parametrize(
    "key", ["rise.train", "agent_r.train", "reflect_rl.train", "reflect_rl.rl", "spin.train", "spin.pairs"]
)
def test_a_fault_in_shared_training_settings_is_reported_once_and_not_for_every_row(key: str) -> None:
    values = copy.deepcopy(DEFAULT)
    put(f"{key}.batchsize", 3)(values)
    method = key.partition(".")[0]
    (fault,) = section_faults(values, method, SCHEMAS[method], "params.yaml")
    assert fault.startswith(f"params.yaml: {key}.batchsize: unknown key")


def test_every_training_inherits_shared_settings_unless_it_overrides_them() -> None:
    values = copy.deepcopy(DEFAULT)
    for method in ("rise", "agent_r", "reflect_rl", "spin"):
        values[method]["train"]["grad_clip"] = 0.25
    values["spin"]["pairs"]["grad_clip"] = 0.75
    values["reflect_rl"]["rl"]["grad_clip"] = 0.1
    values["rise"]["rows"]["iter2"]["train"]["grad_clip"] = 0.5
    rise, spin = RiseParams.model_validate(values["rise"]), SpinParams.model_validate(values["spin"])
    agent_r, rl = AgentRParams.model_validate(values["agent_r"]), ReflectRLParams.model_validate(values["reflect_rl"])
    assert [row.train.grad_clip for row in rise.rows.values()] == [*[0.25] * 5, 0.5]
    assert {row.train.grad_clip for part in (agent_r.rows, rl.models) for row in part.values()} == {0.25}
    assert {row.train.grad_clip: row.data for row in spin.rows.values()} == {0.25: "examples", 0.75: "pairs"}
    assert {one.rl.grad_clip for one in rl.iterations.values()} == {0.1}


def test_an_unknown_section_is_refused_whichever_section_is_loaded() -> None:
    for name, schema in SCHEMAS.items():
        with pytest.raises(UserError, match=r"unknown section 'ruse'; did you mean?"):
            load_section({**DEFAULT, "ruse": {}}, name, schema, "params.yaml")


@pytest.mark.parametrize("section", SECTIONS)
def test_a_missing_section_is_reported_by_name(section: str) -> None:
    assert f"section {section!r} is missing" in complaint(drop(section))
    assert f"params.yaml: {section}: " in complaint(put(section, None))


@pytest.mark.parametrize("key", ["rows", "train", "tasks"])
def test_a_value_in_place_of_a_section_is_reported_without_the_names_of_classes(key: str) -> None:
    section = profile("default")["rise"]
    faults = section_faults({"rise": {**section, key: 3}}, "rise", RiseParams, "params.yaml")
    assert faults == [f"params.yaml: rise.{key}: must be a section with keys, got 3; see docs/params.md."]


def test_a_misspelled_required_key_is_reported_rather_than_the_missing_one() -> None:
    def change(values: dict[str, Any]) -> None:
        values["rise"]["tasks"]["trian"] = values["rise"]["tasks"].pop("train")

    assert "rise.tasks.trian: unknown key; did you mean 'train'?" in complaint(change)
    assert "rise.tasks.train: missing" in complaint(drop("rise.tasks.train"))


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("run.seed", -1, "greater than or equal to 0, got -1"),
        ("run.seed", "seventeen", "got 'seventeen'"),
        ("run.threads", 0, "greater than or equal to 1"),
        ("rise.tasks.source", "gsm9k", "'embedded', 'gsm8k', 'math' or 'files', got 'gsm9k'"),
        ("rise.evaluate.top_p", 0, "greater than 0"),
        ("rise.evaluate.top_p", 1.5, "less than or equal to 1"),
        ("rise.evaluate.temperature", float("nan"), "finite"),
        ("rise.iterations.iter1.generate.models.0", None, "string"),
        ("rise.iterations.iter1.generate.tasks", 2.5, "integer"),
        ("rise.iterations.iter1.convert.criteria", "good", "got 'good'"),
        ("rise.engines.student.engine", "vlm", "student.engine: 'vlm' is unknown; choose one of 'transformers'"),
        ("rise.engines.student.slots", 0, "expected a whole number from 1 to 8192, or auto, got 0"),
        ("rise.engines.teacher.error_rate", 1.1, "less than or equal to 1"),
        ("rise.engines.teacher.engine", "gpt", "'gpt'"),
        ("rise.env.few_shot", "perhaps", "bool"),
        ("rise.rows.base.train.lr", "1e-3 or so", "number"),
        ("agent_r.env.name", "chess", "name: 'chess' is unknown; choose encyclopedia, hotpotqa, "),
        ("agent_r.env.server_timeout", 0, "greater than 0"),
        ("agent_r.env.server_concurrency", 0, "greater than or equal to 1"),
        ("agent_r.tasks.layouts", 0, "greater than or equal to 1"),
        ("agent_r.evaluate.stop", [""], "at least 1 character"),
        ("agent_r.evaluate.max_turns", 0, "greater than or equal to 1"),
        ("agent_r.iterations.iter1.generate.n_gen", 0, "greater than or equal to 1"),
        ("agent_r.iterations.iter1.generate.dives", 1.5, "integer"),
        ("agent_r.iterations.iter1.convert.alpha", 1.01, "less than or equal to 1, got 1.01"),
        ("agent_r.iterations.iter1.convert.alpha", "0,5", "number"),
        ("agent_r.iterations.iter1.convert.beta", -0.1, "greater than or equal to 0, got -0.1"),
        ("agent_r.iterations.iter1.convert.beta", float("inf"), "finite number"),
        ("agent_r.iterations.iter1.convert.data_type", "bad", "'good' or 'centric', got 'bad'"),
        ("agent_r.iterations.iter1.convert.judge", "gpt", "'actor' or 'scripted', got 'gpt'"),
        ("agent_r.iterations.iter2.convert.mix", {"general": -1}, "greater than or equal to 0"),
        ("run.seed", 10**30, "less than or equal to 4294967295, got 1000000000000000000000000000000"),
        ("run.seed", 10**200, "got 1" + "0" * 59 + "…"),
        ("run.threads", 10**6, "less than or equal to 1024"),
        ("rise.tasks.train", 10**12, "less than or equal to 1000000"),
        ("rise.evaluate.parallel_samples", 10**7, "less than or equal to 10000"),
        ("rise.evaluate.top_p", 1e-320, "a number from 1e-12 to 1e+09 is expected"),
        ("rise.evaluate.temperature", 1e300, "a number from 1e-12 to 1e+09 is expected"),
        ("rise.evaluate.max_tokens", 10**8, "a number of at most 10000000 is expected"),
        ("rise.iterations.iter1.convert.reward_temperature", 1e-320, "greater than or equal to 0.02"),
        ("rise.engines.student.slots", 100_000, "a whole number from 1 to 8192, or auto"),
        ("rise.rows.base.train.betas", [0.9, 2.0], "expected two numbers in [0, 1)"),
        ("rise.rows.base.train.epochs", 1e30, "a number from 1e-12 to 1e+09 is expected"),
        ("base.rise.arch", {"hidden": 10**9}, "less than or equal to 65536"),
        ("base.rise.arch", {"layers": 10**6}, "less than or equal to 1000"),
        ("tokenizer.rise.vocab_size", 10**12, "less than or equal to 1000000"),
        ("agent_r.rows.direct.data", "bad", "'examples', 'good' or 'direct', got 'bad'"),
    ],
)
def test_values_of_wrong_type_or_range_are_reported_with_the_key_and_what_is_valid(
    path: str, value: Any, said: str
) -> None:
    if path.endswith(".0"):
        sentence = complaint(put(path[:-2], [value, "teacher"]))
    else:
        sentence = complaint(put(path, value))
    assert sentence.startswith(f"params.yaml: {path.removesuffix('.engine').removesuffix('.name')}")
    assert said in sentence


def test_pipes_and_devices_named_in_params_are_refused_before_they_are_opened(tmp_path: Path) -> None:
    pipe = tmp_path / "key"
    os.mkfifo(pipe)
    endpoint = {"engine": "openai", "base_url": "http://127.0.0.1:9/v1", "model": "m", "api_key_file": str(pipe)}
    said = f"params.yaml: rise: {pipe} is a pipe or a device; set a regular file."
    assert complaint(put("rise.engines.teacher", endpoint)) == said
    assert "spin: /dev/zero is a pipe or a device" in complaint(put("spin.prompt", {"few_shot": "/dev/zero"}))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=6,
    ),
    st.sampled_from(
        [
            "run",
            "base",
            "rise",
            "rise.engines",
            "rise.iterations.iter1",
            "rise.tasks.difficulty",
            "agent_r",
            "agent_r.env",
            "agent_r.tasks",
            "agent_r.engines",
            "agent_r.iterations.iter2.convert",
            "agent_r.rows",
            "agent_r.rows.direct",
        ]
    ),
)
def test_any_value_either_loads_or_gives_an_error_that_names_the_file(value: Any, path: str) -> None:
    values = copy.deepcopy(DEFAULT)
    put(path, value)(values)
    sentence = "params.yaml: "
    try:
        load_all(values)
    except UserError as error:
        sentence = str(error)
    assert sentence.startswith("params.yaml: ")


def test_existing_paths_named_in_params_are_found_at_any_depth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mine/config.json", "my/train.jsonl", "model.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("{}")
    rise = {"tasks": {"files": {"train": "my/train.jsonl", "test": "my/absent.jsonl"}}, "models": ["mine", "policy"]}
    assert named_paths([rise, BaseParams(model="mine"), None, 3, "x" * 5000, "a\0b", ""]) == {
        Path("my/train.jsonl"), Path("mine"),
    }  # fmt: skip


def test_files_that_stages_write_and_files_with_keys_are_no_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("serp.jsonl", "crashed.json", "keys.cfg", "mine.jsonl"):
        (tmp_path / name).write_text("x")
    teacher = OpenAiEngineConfig(engine="openai", base_url="http://x", model="m", api_key_file="keys.cfg")
    written = {"tools": {"cache": "serp.jsonl"}, "env": {"blacklist": "crashed.json"}, "engines": {"teacher": teacher}}
    assert named_paths(written) == set()
    assert named_paths(written, every=True) == {Path("serp.jsonl"), Path("crashed.json"), Path("keys.cfg")}
    assert named_paths({"rows": {"cache": {"file": "mine.jsonl"}}}) == {Path("mine.jsonl")}  # a row of that name


@pytest.mark.parametrize("text", [".", "..", "/", "data", "models/", "./results", ".scratch"])
def test_a_string_that_equals_the_path_of_a_folder_with_outputs_is_not_an_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("data/code", "models", "results", ".scratch"):
        (tmp_path / name).mkdir(parents=True)
    assert Path(text).exists()
    assert named_paths({"stop": [text]}) == set()
    assert named_paths("data/code") == {Path("data/code")}
