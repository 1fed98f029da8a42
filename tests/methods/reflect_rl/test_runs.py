"""Folders of the original's runs: the next number, an exported run that its readers accept, deleted weights."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from selfimprove.core.records import write_rows
from selfimprove.interop.reflect_rl_runs import clean_checkpoints, next_run
from selfimprove.methods.reflect_rl.logs import Point, read_original
from tests.methods.reflect_rl.test_export import run
from tests.support.sentences import refused_with


@pytest.mark.parametrize(
    ("names", "number"),
    [
        ([], "000"),
        (["notes"], "000"),
        (["000_supervised_pretrain"], "001"),
        (["007_rl_finetune", "012_supervised_pretrain", "notes", "plots_99"], "013"),
        (["999_rl_finetune"], "1000"),
        (["1000_rl_finetune", "999_rl_finetune"], "1001"),  # the original: 101
    ],
)
def test_a_run_gets_the_highest_full_number_plus_one(names: list[str], number: str) -> None:
    assert next_run(names) == number


def test_an_exported_run_is_numbered_and_read_like_one_of_the_original(tmp_path: Path) -> None:
    row = {"level": "", "loss": [0.5, None], "critic_loss": None, "cost": -1.0, "succ": 0.5, "entropy": 1.0, "steps": 1}
    write_rows(tmp_path / "log.jsonl", [row | {"iter": number, "log": []} for number in (1, 2, 3)])
    assert run("run", tmp_path / "log.jsonl", tmp_path / "results") == "000_rl_finetune\n"
    assert run("run", tmp_path / "log.jsonl", tmp_path / "results", "--accumulation", "2") == "001_rl_finetune\n"
    folder = tmp_path / "results/001_rl_finetune"
    assert (folder / "checkpoint-3/logs.json").is_file()
    (log,) = read_original(folder)
    assert log.accumulation == 2
    assert log.points == [Point(number, 0.5, -1.0, 0.5) for number in (1, 2, 3)]
    (tmp_path / "log.jsonl").write_text("")
    with refused_with(r"log\.jsonl is empty; add at least one row"):
        run("run", tmp_path / "log.jsonl", tmp_path / "results")
    assert len(list((tmp_path / "results").iterdir())) == 2


def test_only_the_newest_checkpoint_keeps_its_weights_and_all_keep_their_logs(tmp_path: Path) -> None:
    for step in (9, 10, 100):
        (tmp_path / f"checkpoint-{step}/critic").mkdir(parents=True)
        for name in ("adapter_model.safetensors", "critic/score.pt", "logs.json", "adapter_config.json"):
            (tmp_path / f"checkpoint-{step}" / name).write_text(name)
    (tmp_path / "model.safetensors").write_text("not of a checkpoint")
    assert sorted(map(str, clean_checkpoints(tmp_path))) == [
        f"checkpoint-{step}/{name}" for step in (10, 9) for name in ("adapter_model.safetensors", "critic/score.pt")
    ]
    kept = sorted(str(one.relative_to(tmp_path)) for one in tmp_path.rglob("*") if one.is_file())
    assert [one for one in kept if one.endswith((".safetensors", ".pt"))] == [
        "checkpoint-100/adapter_model.safetensors", "checkpoint-100/critic/score.pt", "model.safetensors",
    ]  # fmt: skip
    assert sum(one.endswith(("logs.json", "adapter_config.json")) for one in kept) == 6
    assert clean_checkpoints(tmp_path) == []
    with refused_with(r"has no checkpoint-K folder"):
        clean_checkpoints(tmp_path / "checkpoint-9")


def test_the_last_weights_are_kept_if_a_newer_checkpoint_has_none(tmp_path: Path) -> None:
    """A run that is killed while saving leaves the newest checkpoint empty."""
    for step in (1, 2, 3):
        (tmp_path / f"checkpoint-{step}").mkdir()
    for step in (1, 2):
        (tmp_path / f"checkpoint-{step}/adapter_model.safetensors").write_text("weights")
    assert list(map(str, clean_checkpoints(tmp_path))) == ["checkpoint-1/adapter_model.safetensors"]
    assert (tmp_path / "checkpoint-2/adapter_model.safetensors").is_file()


def test_weights_behind_a_linked_checkpoint_are_kept(tmp_path: Path) -> None:
    for folder in ("other/checkpoint-1", "run/checkpoint-2"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "model.safetensors").write_text("weights")
    (tmp_path / "run/checkpoint-1").symlink_to(tmp_path / "other/checkpoint-1")
    assert clean_checkpoints(tmp_path / "run") == []
    assert (tmp_path / "other/checkpoint-1/model.safetensors").is_file()


def test_a_run_without_any_weights_stays_as_it_is(tmp_path: Path) -> None:
    """As `run` exports it: a checkpoint with nothing but logs."""
    (tmp_path / "checkpoint-3").mkdir()
    (tmp_path / "checkpoint-3/logs.json").write_text("[]")
    assert clean_checkpoints(tmp_path) == []
    assert (tmp_path / "checkpoint-3/logs.json").is_file()


def test_weights_that_cannot_be_deleted_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    for step in (1, 2):
        (tmp_path / f"checkpoint-{step}").mkdir()
        (tmp_path / f"checkpoint-{step}/model.safetensors").write_text("weights")
    monkeypatch.setattr(Path, "unlink", refused)
    with refused_with(r"checkpoint-1/model\.safetensors cannot be deleted \(Permission denied\); check the folder's"):
        clean_checkpoints(tmp_path)
