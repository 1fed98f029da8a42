"""``make check``: everything that is wrong is said before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from ruamel.yaml import YAML

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


def test_the_smoke_profile_is_fine(capsys: pytest.CaptureFixture[str]) -> None:
    check.main()
    assert "8 sections are valid, and what rise, agent_r, reflect_rl, spin need is there" in capsys.readouterr().out


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
    assert "a name has letters, digits, _ and - only" in said


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
    assert any("is cuda, but there is no NVIDIA GPU here" in fault for fault in faults)
    assert any("engines.student: engine vllm: the package vllm is not installed here" in fault for fault in faults)


@pytest.mark.parametrize("fault", ["rise: 1", "x", "", "run: {seed: 1"])
def test_a_file_that_is_no_params_is_one_sentence(fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("params.yaml").write_text(fault)
    assert all("params.yaml" in line for line in ends_with(capsys))
