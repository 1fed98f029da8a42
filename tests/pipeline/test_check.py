"""``make check``: every problem is reported before anything runs."""

from __future__ import annotations

import os
import re
import shutil
import sys
from functools import reduce
from pathlib import Path

import pytest
from dvc.repo import Repo
from ruamel.yaml import YAML

from selfimprove.apps.report.dag import needs
from selfimprove.core.errors import UserError
from selfimprove.methods.agent_r.params import AgentRParams
from selfimprove.methods.rise.params import RiseParams
from selfimprove.models.base import BaseSection
from selfimprove.pipeline import check
from selfimprove.pipeline.params import section_faults
from selfimprove.pipeline.plan.hardware import Asked
from selfimprove.pipeline.plan.plan import make_plan
from selfimprove.pipeline.profiles import compose
from tests.support.profiles import profile

ROOT = Path(__file__).resolve().parents[2]
NEEDS = "the keys, packages, files, models and GPUs that"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "params.yaml").write_text(compose("smoke", ROOT / "profiles"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["check"])
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    return tmp_path


def change(text: str, new: str) -> None:
    file = Path("params.yaml")
    assert text in file.read_text()
    file.write_text(file.read_text().replace(text, new, 1))


def ends_with(capsys: pytest.CaptureFixture[str]) -> list[str]:
    with pytest.raises(SystemExit, match="2"):
        check.main()
    return capsys.readouterr().err.splitlines()


def write_results(method: str) -> None:
    """The summary and the records of a finished run with the present params."""
    shutil.copy(ROOT / "dvc.yaml", "dvc.yaml")
    values = YAML(typ="safe", pure=True).load(Path("params.yaml"))
    locked = {}
    with Repo.init(no_scm=True) as repo:
        for stage in repo.index.stages:
            if stage.name == f"base@{method}" or stage.name.startswith(f"{method}-"):
                keys = [key for dependency in stage.deps for key in getattr(dependency, "params", ())]
                found = {key: reduce(lambda node, part: node[part], key.split("."), values) for key in keys}
                locked[stage.name] = {"cmd": stage.cmd, "params": {"params.yaml": found}}
    with Path("dvc.lock").open("w") as file:
        YAML(typ="safe").dump({"schema": "2.0", "stages": locked}, file)
    Path("results/summary").mkdir(parents=True)
    Path(f"results/summary/{method}.json").write_text("{}")


def test_a_folder_without_git_is_refused_before_dvc_fails_in_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Repo.init(no_scm=True).close()
    check.main()
    Path(".dvc/config").write_text("[core]\n    analytics = false\n")  # as unpacked from an archive
    (said,) = ends_with(capsys)
    assert said.startswith("this folder is not a git repository, and DVC needs one; clone it, or run `git init && ")
    Path(".git").write_text("gitdir: elsewhere\n")  # as in a worktree or a submodule
    check.main()


def test_a_path_that_dvc_cannot_read_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "{x}").mkdir()
    shutil.move("params.yaml", "{x}")
    monkeypatch.chdir(folder / "{x}")
    (said,) = ends_with(capsys)
    assert said.startswith(f"the folder's path {folder}/{{x}} contains a curly bracket")


def test_the_params_of_an_earlier_version_are_refused_with_the_place_of_the_new_names() -> None:
    old = {**profile("smoke"), "rise": profile("smoke")["rise"] | {"sft": {}, "controls": {}, "teacher": {}}}
    assert not any("docs/reference.md" in said for said in check.params_faults(old))  # three mistyped keys
    *faults, last = check.params_faults({**old, "spin": profile("smoke")["spin"] | {"sft": {}}})
    assert len(faults) == 4
    assert "docs/reference.md lists the new names" in last


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS only has Unicode names")
def test_a_path_that_is_not_unicode_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    strange = os.fsdecode(os.fsencode(folder) + b"/\xff")
    os.mkdir(strange)
    shutil.move("params.yaml", strange)
    monkeypatch.chdir(strange)
    (said,) = ends_with(capsys)
    assert said.startswith(f"the folder's path {folder}/\\udcff is not UTF-8")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--say"], f"{NEEDS} rise, agent_r, reflect_rl, spin will need are available"),
        (["--say", "rise"], f"{NEEDS} rise will need are available"),
        (["--say", "spin"], "all results of spin exist"),
        (["rise"], ""),
        (["params"], ""),
    ],
)
def test_make_check_confirms_valid_params_and_other_targets_print_nothing(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if words[-1] == "spin":
        write_results("spin")
    monkeypatch.setattr("sys.argv", ["check", *words])
    check.main()
    assert capsys.readouterr().out == (said and f"params.yaml: all 8 sections are valid, and {said}.\n")


def test_a_method_that_does_not_exist_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["check", "rise", "rice"])
    assert ends_with(capsys) == ["there is no method 'rice'; choose rise, agent_r, reflect_rl, spin, or params."]


def test_make_check_is_the_only_target_that_requests_the_confirmation() -> None:
    lines = [line for line in (ROOT / "Makefile").read_text().splitlines() if "pipeline.check" in line]
    assert [line.strip() for line in lines if check.SAY in line] == [
        f"@python -m selfimprove.pipeline.check {check.SAY} $(filter-out all,$(METHOD))"
    ]


def test_a_missing_key_with_a_default_is_reported_before_the_run_if_dvc_reads_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(ROOT / "dvc.yaml", folder)
    check.main()
    capsys.readouterr()
    change("max_length: 352,", "")  # of rise.rows.iter1, which then inherits that of rise.train
    change("  threads: 1\n", "")
    assert ends_with(capsys) == [
        "params.yaml: run.threads: missing, but DVC reads it for stage base@rise; add it (its default is in "
        "docs/params.md).",
        "params.yaml: rise.rows.iter1.train.max_length: missing, but DVC reads it for stage rise-convert@iter1; add it "
        "(rise.train has 352).",
    ]


def test_faults_in_different_sections_are_reported_together(capsys: pytest.CaptureFixture[str]) -> None:
    change("demonstrations: 64", "demonstrations: -1")
    change("seed: 17", "seed: x")
    said = ends_with(capsys)
    assert len(said) == 2
    assert "run.seed" in said[0]
    assert "rise.tasks.demonstrations" in said[1]


def test_every_fault_in_a_section_is_reported_on_its_own_line(capsys: pytest.CaptureFixture[str]) -> None:
    values = YAML(typ="safe", pure=True).load(Path("params.yaml"))
    values["rise"]["tasks"] = {"source": "files", "files": {"train": "my/train.jsonl"}, "tran": 5}
    values["spin"]["rows"]["more_sft"]["train"]["batch_size"] = 0
    YAML().dump(values, Path("params.yaml"))
    said = ends_with(capsys)
    assert said[0] == "params.yaml: rise.tasks.tran: unknown key; did you mean 'train'?"
    assert said[1:5] == [
        f"params.yaml: rise.tasks.{key}: missing; add it." for key in ("demonstrations", "train", "dev", "test")
    ]
    assert said[5].startswith("params.yaml: spin.rows.more_sft.train.batch_size: ")
    assert len(said) == 6


@pytest.mark.parametrize(
    "name", ["a;touch PWNED;", "$(touch PWNED)", "`touch PWNED`", "a b", "../../selfimprove", "'x'", "--help"]
)
def test_names_that_a_shell_a_path_or_a_command_would_interpret_are_refused(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    values = YAML(typ="safe", pure=True).load(Path("params.yaml"))
    rows = values["rise"]["rows"]
    values["rise"]["iterations"] = {name: {**values["rise"]["iterations"]["iter1"]}}
    values["rise"]["rows"] = {"base": rows["base"], name: {**rows["iter1"], "source": name}}
    with Path("params.yaml").open("w") as file:
        YAML().dump(values, file)
    (said,) = ends_with(capsys)
    assert "a name may contain only letters, digits, _ and -, and not begin with -" in said


def test_a_missing_api_key_is_reported_before_the_run_and_only_if_the_engine_is_used(
    capsys: pytest.CaptureFixture[str],
) -> None:
    values = YAML(typ="safe", pure=True).load(Path("params.yaml"))
    values["rise"]["engines"]["teacher"] = {"engine": "openai", "base_url": "http://127.0.0.1:9/v1", "model": "m"}
    values["rise"]["engines"]["unused"] = {**values["rise"]["engines"]["teacher"], "api_key_env": "OTHER_KEY"}
    with Path("params.yaml").open("w") as file:
        YAML().dump(values, file)
    (said,) = ends_with(capsys)
    assert said.startswith("rise: engines.teacher: the API key OPENAI_API_KEY is not set; export OPENAI_API_KEY=<key>")
    write_results("rise")
    check.main()  # a complete run makes no more requests
    change("lr: ", "lr: 3")  # now some stages must run again
    assert ends_with(capsys) == [said]
    Path("dvc.lock").unlink()
    assert ends_with(capsys) == [said]


def test_addresses_that_no_run_can_use_are_reported() -> None:
    values = profile("default")["rise"]
    values["engines"]["teacher"] = {"engine": "openai", "base_url": "http://me:pass@host/v1", "model": "m"}
    (said,) = check.machine_faults(RiseParams.model_validate(values), {"OPENAI_API_KEY": "sk-x"})
    assert said.startswith("engines.teacher: base_url at host contains a password")
    section = AgentRParams.model_validate(profile("default")["agent_r"])
    section = section.model_copy(update={"env": section.env.model_copy(update={"server": "http://127.0.0.1:99999"})})
    (said,) = check.machine_faults(section, {})
    assert said.startswith("env.server '127.0.0.1:99999' is not an http(s) address")


def test_a_key_in_place_of_its_variable_s_name_is_refused_and_not_repeated() -> None:
    values = profile("default")["rise"]
    key = "sk-Secret1"
    values["engines"]["teacher"] = {"engine": "openai", "base_url": "http://h/v1", "model": "m", "api_key_env": key}
    (said,) = section_faults({"rise": values}, "rise", RiseParams, "params.yaml")
    assert "rise.engines.teacher.api_key_env: must be the name of an environment variable" in said
    assert key not in said


@pytest.mark.parametrize(
    "text", ["a: [", "x: 1", "stages: 3", "stages: {a: 3}", "stages: {a: {do: [x]}}", "stages: {a: {params: 7}}"]
)
def test_a_damaged_dvc_yaml_is_reported(text: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Repo.init(str(folder), no_scm=True)
    (folder / "dvc.yaml").write_text(text)
    (said,) = ends_with(capsys)
    assert "dvc.yaml" in said
    with pytest.raises(UserError, match=r"DVC refuses dvc\.yaml \("):
        needs()


def set_key(path: str, value: object) -> None:
    values = YAML(typ="safe", pure=True).load(Path("params.yaml"))
    *parents, last = path.split(".")
    node = values
    for part in parents:
        node = node[part]
    node[last] = value
    YAML().dump(values, Path("params.yaml"))


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("spin.tools", {"use": {"search": "serpapi"}}, "spin: tools: the search key SERPAPI_API_KEY is not set"),
        (
            "spin.play_tools",
            {"use": {"search": "serpapi"}, "serpapi": {"api_key_env": "MY_KEY"}},
            "spin: play_tools: the search key MY_KEY is not set; export MY_KEY=<key>",
        ),
        (
            "base.rise",
            {"model": "models/smollm2"},
            "base.rise.model: models/smollm2 does not exist yet; run `make models/smollm2` first.",
        ),
        (
            "base.spin",
            {"model": "./nowhere", "revision": "abc"},
            "base.spin.model: folder ./nowhere does not exist; name an existing folder",
        ),
        (
            "base.rise",
            {"model": "models/smollm2", "chat_template": "rize"},
            "base.rise.chat_template: 'rize' is neither one of plain, zephyr, rise, react, text nor a file",
        ),
        (
            "base.rise",
            {"model": "models/smollm2", "chat_template": "{{ messages }}" * 99},  # too long for the name of a file
            "base.rise.chat_template: '{{ messages }}{{ messages }}",
        ),
        ("reflect_rl.evaluate.levels", ["pickupp"], "reflect_rl: evaluate.levels: taxi has no level 'pickupp'"),
        ("reflect_rl.generate.levels", ["pickupp"], "reflect_rl: generate.levels: taxi has no level 'pickupp'"),
        ("reflect_rl.tasks.train", 301, "reflect_rl: tasks: "),
        (
            "agent_r.iterations.iter2.convert.mix",
            {"general": 0.2, "general_file": "my/chats.jsonl"},  # would be read after the search only
            "agent_r: iterations.iter2.convert.mix.general_file: my/chats.jsonl does not exist; name an existing file",
        ),
        ("agent_r.env", {"name": "textcraft", "recipes": "my/book"}, "agent_r: env.recipes: my/book does not exist"),
        (
            "spin.env",
            {"name": "hotpotqa", "file": "my/questions.json"},
            "spin: env.file: my/questions.json does not exist",
        ),
        (
            "spin.tools",
            {"use": {"search": "replay"}, "snippets": "my/snippets.jsonl"},  # would be read after the warm start only
            "spin: tools.snippets: my/snippets.jsonl does not exist",
        ),
        (
            "rise.env",
            [{"name": "textcraft", "recipes": "my/book"}, {"name": "taxi"}],
            "rise: env.recipes: my/book does not exist",
        ),
    ],
)
def test_problems_that_would_fail_a_first_stage_are_reported_before_it_runs(
    path: str, value: object, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("SERPAPI_API_KEY", "MY_KEY"):
        monkeypatch.delenv(name, raising=False)
    set_key(path, value)
    assert any(line.startswith(said) for line in ends_with(capsys))


def test_a_context_beyond_the_positions_of_the_model_is_reported_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    set_key("agent_r.engines.actor.context", 1537)
    assert ends_with(capsys) == [
        "agent_r: engines.actor.context is 1537, but the model has only 1536 positions; lower it, or raise "
        "base.agent_r.arch.positions."
    ]
    set_key("agent_r.engines.actor.context", 1536)
    (tmp_path / "own").mkdir()
    (tmp_path / "own/config.json").write_text('{"max_position_embeddings": 300}')
    set_key("base.rise", {"model": "own"})
    assert "rise: engines.student.context is 352, but own has only 300 positions; lower it." in ends_with(capsys)
    (tmp_path / "own/config.json").write_text("damaged")
    check.main()
    set_key("base.rise", {"model": "owner/name", "revision": "abc"})  # its config is not available
    check.main()


@pytest.mark.parametrize(
    ("max_length", "context", "refused"), [(4096, 8192, True), (8192, 8192, False), (8192, 8193, True)]
)
def test_vllm_s_context_may_reach_the_positions_that_training_scales(
    max_length: int, context: int, refused: bool
) -> None:
    values = profile("rise-llama2-7b")
    values["rise"]["engines"]["student"]["context"] = context
    for row in values["rise"]["rows"].values():
        row["train"]["max_length"] = max_length
    base = BaseSection.model_validate(values["base"]).rise
    found = list(check.context_faults("rise", RiseParams.model_validate(values["rise"]), base))
    assert len(found) == refused
    planned = make_plan("", values, "rise", Asked(gpus=(4, 80e9)), where="params.yaml", memory=80e9)
    assert any("student.context is" in problem for problem in planned.problems) == refused


def test_learning_rates_cause_a_warning_only_if_the_base_model_can_be_used(capsys: pytest.CaptureFixture[str]) -> None:
    set_key("base.rise", {"model": "owner/name", "revision": "abc"})  # on the hub
    check.main()
    assert capsys.readouterr().err.startswith("WARNING: base.rise.model is owner/name, but these keys still have")
    set_key("base.rise.model", "./nowhere")
    assert ends_with(capsys) == [
        "base.rise.model: folder ./nowhere does not exist; name an existing folder, or a hub model as owner/name."
    ]


@pytest.mark.parametrize(("method", "engine"), [("rise", "student"), ("agent_r", "actor"), ("spin", "policy")])
def test_a_warning_says_that_an_endpoint_plays_in_every_row(
    method: str, engine: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["check", method])
    set_key("spin.prompt.format", "chat")
    check.main()
    assert capsys.readouterr().err == ""
    set_key(
        f"{method}.engines.{engine}", {"engine": "openai", "base_url": "http://h/v1", "model": "m", "api_key_env": None}
    )
    check.main()
    said = f"WARNING: {method}.engines.{engine} is an endpoint: every row is evaluated with its model m, and none with"
    assert capsys.readouterr().err.startswith(said)


def test_scienceworld_has_to_be_installed_here_unless_a_server_runs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    section = AgentRParams.model_validate(profile("agent-r-sciworld")["agent_r"])
    assert any(fault.startswith("env: ScienceWorld ") for fault in check.machine_faults(section, {}))
    remote = section.model_copy(update={"env": section.env.model_copy(update={"server": "http://127.0.0.1:9"})})
    assert not any(fault.startswith("env: ") for fault in check.machine_faults(remote, {}))


def test_an_unknown_cluster_is_reported_before_any_stage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLUSTER", "rai")
    assert ends_with(capsys) == ["CLUSTER=rai is unknown; choose one of none, ray, slurm."]


def test_check_params_as_used_by_make_dag_checks_the_params_but_not_the_machine(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["check", "params"])
    set_key("base.rise", {"model": "models/smollm2"})  # missing on this machine, which is not checked
    check.main()
    change("seed: 17", "seed: x")
    (said,) = ends_with(capsys)
    assert "run.seed" in said


@pytest.mark.parametrize("fault", ["rise: 1", "x", "", "run: {seed: 1"])
def test_errors_in_an_invalid_params_file_name_the_file(fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("params.yaml").write_text(fault)
    assert all("params.yaml" in line for line in ends_with(capsys))


def test_every_key_that_names_an_input_file_is_checked() -> None:
    """By the descriptions of the keys with text in docs/params.md, which are those of the schemas."""
    table = (ROOT / "docs/params.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| .*?\bstr\b.*? \| .+? \| (.*) \|$", table, re.MULTILINE)
    named = {key for key, told in rows if re.search(r"\b(files?|folder|JSONL|repository)\b", told)}
    checked_by_others = {"adapter_of", "api_key_file", "chat_template", "few_shot", "model"}
    no_input = {"blacklist", "cache", "teacher"}  # two are written; a teacher's description mentions files
    assert named == {*check.FILE_KEYS, *checked_by_others, *no_input}
