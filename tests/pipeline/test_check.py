"""``make check``: everything that is wrong is said before anything runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from selfimprove.methods.agent_r.params import AgentRParams
from selfimprove.methods.rise.params import RiseParams
from selfimprove.pipeline import check
from selfimprove.pipeline.profiles import compose
from tests.support.profiles import profile

ROOT = Path(__file__).resolve().parents[2]


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


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--say"], "everything that rise, agent_r, reflect_rl, spin will need is available"),
        (["--say", "rise"], "everything that rise will need is available"),
        (["--say", "spin"], "all results of spin exist"),
        (["rise"], ""),
        (["params"], ""),
    ],
)
def test_make_check_says_what_is_in_order_and_other_targets_nothing(
    words: list[str], said: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if words[-1] == "spin":
        (folder / "results/summary").mkdir(parents=True)
        (folder / "results/summary/spin.json").write_text("{}")
    monkeypatch.setattr("sys.argv", ["check", *words])
    check.main()
    assert capsys.readouterr().out == (said and f"params.yaml: all 8 sections are valid, and {said}.\n")


def test_of_all_targets_only_make_check_asks_for_that_line() -> None:
    lines = [line for line in (ROOT / "Makefile").read_text().splitlines() if "pipeline.check" in line]
    assert [line.strip() for line in lines if check.SAY in line] == [
        f"@python -m selfimprove.pipeline.check {check.SAY} $(filter-out all,$(METHOD))"
    ]


def test_a_key_that_dvc_reads_and_only_the_schemas_know_is_told_before_the_run(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(ROOT / "dvc.yaml", folder)
    check.main()
    capsys.readouterr()
    change("max_length: 352,", "")  # of rise.rows.iter1; rise.train has one, which the row then trains with
    change("  threads: 1\n", "")
    assert ends_with(capsys) == [
        "params.yaml: run.threads: missing, but DVC reads it for stage base@rise; add it (its default is in "
        "docs/params.md).",
        "params.yaml: rise.rows.iter1.train.max_length: missing, but DVC reads it for stage rise-convert@iter1; add it "
        "(rise.train has 352).",
    ]


def test_every_section_s_fault_is_told_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    change("demonstrations: 64", "demonstrations: -1")
    change("seed: 17", "seed: x")
    said = ends_with(capsys)
    assert len(said) == 2
    assert "run.seed" in said[0]
    assert "rise.tasks.demonstrations" in said[1]


def test_every_fault_of_one_section_is_told_in_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
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
    "name", ["a;touch PWNED;", "$(touch PWNED)", "`touch PWNED`", "a b", "../../selfimprove", "'x'"]
)
def test_a_name_that_a_shell_or_a_path_would_read_otherwise_is_refused(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    values = YAML(typ="safe", pure=True).load(Path("params.yaml"))
    rows = values["rise"]["rows"]
    values["rise"]["iterations"] = {name: {**values["rise"]["iterations"]["iter1"]}}
    values["rise"]["rows"] = {"base": rows["base"], name: {**rows["iter1"], "source": name}}
    with Path("params.yaml").open("w") as file:
        YAML().dump(values, file)
    (said,) = ends_with(capsys)
    assert "a name may contain only letters, digits, _ and -" in said


def test_a_key_that_a_stage_would_miss_late_is_asked_for_first_and_only_where_it_is_used(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = YAML(typ="safe", pure=True).load(Path("params.yaml"))
    values["rise"]["engines"]["teacher"] = {"engine": "openai", "base_url": "http://127.0.0.1:9/v1", "model": "m"}
    values["rise"]["engines"]["unused"] = {**values["rise"]["engines"]["teacher"], "api_key_env": "OTHER_KEY"}
    with Path("params.yaml").open("w") as file:
        YAML().dump(values, file)
    (said,) = ends_with(capsys)
    assert said.startswith("rise: engines.teacher: the API key OPENAI_API_KEY is not set; export OPENAI_API_KEY=<key>")
    (folder / "results/summary").mkdir(parents=True)
    (folder / "results/summary/rise.json").write_text("{}")
    check.main()  # a run that is complete asks nobody any more


def test_gpus_and_packages_that_are_not_here_are_named() -> None:
    values = profile("rise-llama2-7b")
    faults = list(check.machine_faults(RiseParams.model_validate(values["rise"]), {"OPENAI_API_KEY": "sk-x"}))
    assert any("is cuda, but this machine has no NVIDIA GPU" in fault for fault in faults)
    assert any("engines.student: engine vllm: the package vllm is not installed here" in fault for fault in faults)


def test_where_there_is_a_gpu_and_no_compiler_a_run_on_it_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "GPU_FILES", (str(tmp_path),))
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    values = profile("rise-llama2-7b")
    faults = list(check.machine_faults(RiseParams.model_validate(values["rise"]), {"OPENAI_API_KEY": "sk-x"}))
    assert any("Triton's kernels need a C compiler" in fault for fault in faults)
    assert not any("no NVIDIA GPU" in fault for fault in faults)


@pytest.mark.parametrize(
    ("compiler", "header", "lacking"),
    [
        (True, True, None),
        (False, True, "a C compiler"),
        (True, False, "Python's headers ("),
        (False, False, "a C compiler and Python's headers ("),
    ],
)
def test_what_triton_compiles_with_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: bool, header: bool, lacking: str | None
) -> None:
    if compiler:
        (tmp_path / "gcc").touch(mode=0o755)
    if header:
        (tmp_path / "Python.h").touch()
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    faults = list(check.compiler_faults(tmp_path))
    if lacking is None:
        assert faults == []
    else:
        (said,) = faults
        assert f"Triton's kernels need {lacking}" in said


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
        ("reflect_rl.evaluate.levels", ["pickupp"], "reflect_rl: evaluate.levels: taxi has no level 'pickupp'"),
        ("reflect_rl.generate.levels", ["pickupp"], "reflect_rl: generate.levels: taxi has no level 'pickupp'"),
        ("reflect_rl.tasks.train", 301, "reflect_rl: tasks: "),
    ],
)
def test_what_the_first_stage_would_miss_is_told_before_it(
    path: str, value: object, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("SERPAPI_API_KEY", "MY_KEY"):
        monkeypatch.delenv(name, raising=False)
    set_key(path, value)
    assert any(line.startswith(said) for line in ends_with(capsys))


def test_scienceworld_s_installation_is_asked_for_where_it_is_played_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    section = AgentRParams.model_validate(profile("agent-r-sciworld")["agent_r"])
    assert any(fault.startswith("env: ScienceWorld ") for fault in check.machine_faults(section, {}))
    remote = section.model_copy(update={"env": section.env.model_copy(update={"server": "http://127.0.0.1:9"})})
    assert not any(fault.startswith("env: ") for fault in check.machine_faults(remote, {}))


def test_a_cluster_that_does_not_exist_is_told_before_any_stage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CLUSTER", "rai")
    assert ends_with(capsys) == ["CLUSTER=rai is unknown; choose one of none, ray, slurm."]


def test_params_alone_can_be_checked_as_make_dag_does(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["check", "params"])
    set_key("base.rise", {"model": "models/smollm2"})  # this machine's matter
    check.main()
    change("seed: 17", "seed: x")
    (said,) = ends_with(capsys)
    assert "run.seed" in said


@pytest.mark.parametrize("fault", ["rise: 1", "x", "", "run: {seed: 1"])
def test_a_file_that_is_no_params_is_one_sentence(fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("params.yaml").write_text(fault)
    assert all("params.yaml" in line for line in ends_with(capsys))
