"""Which checkpoints count as complete, which are damaged, and which are kept."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from selfimprove.training.checkpoints import drop_damaged, folders, keep_newest, newest_whole, seal


def make(folder: Path, step: int, *, sealed: bool = True) -> Path:
    """A checkpoint of one file in a subfolder; returns that file."""
    file = folder / f"checkpoint-{step}" / "zero" / "optimizer.pt"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"x" * 50)
    if sealed:
        seal(folder / f"checkpoint-{step}")
    return file


def test_a_checkpoint_without_a_seal_or_with_a_file_of_another_size_is_ignored(tmp_path: Path) -> None:
    files = {step: make(tmp_path, step, sealed=step < 100) for step in (3, 4, 20, 100)}
    (tmp_path / "checkpoint-best").mkdir()  # not one of ours
    assert newest_whole(tmp_path) == tmp_path / "checkpoint-20"
    files[20].write_bytes(b"x" * 49)
    assert newest_whole(tmp_path) == tmp_path / "checkpoint-4"
    files[4].write_bytes(b"x" * 51)
    assert newest_whole(tmp_path) == tmp_path / "checkpoint-3"
    (tmp_path / "checkpoint-3" / "whole.json").write_text('{"zero/optimizer.pt"')
    assert newest_whole(tmp_path) is None


def test_a_checkpoint_that_is_written_and_sealed_again_is_complete(tmp_path: Path) -> None:
    make(tmp_path, 3).write_bytes(b"y" * 60)
    seal(tmp_path / "checkpoint-3")
    drop_damaged(tmp_path)
    assert newest_whole(tmp_path) == tmp_path / "checkpoint-3"


def test_a_checkpoint_that_changed_after_sealing_is_deleted_with_a_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {step: make(tmp_path, step) for step in (3, 20, 100)}
    drop_damaged(tmp_path)
    assert (newest_whole(tmp_path), capsys.readouterr().err) == (tmp_path / "checkpoint-100", "")
    files[100].unlink()
    files[20].write_bytes(b"y" + b"x" * 49)
    drop_damaged(tmp_path)
    assert newest_whole(tmp_path) == tmp_path / "checkpoint-3"
    (tmp_path / "checkpoint-3" / "whole.json").write_bytes(bytes(90))
    drop_damaged(tmp_path)
    assert list(tmp_path.iterdir()) == []
    said = "{0}/checkpoint-{1} is damaged: checkpoint-{2} was deleted, and training resumes from {3}."
    assert capsys.readouterr().err.splitlines() == [
        said.format(tmp_path, "100/zero/optimizer.pt", 100, "step 20"),
        said.format(tmp_path, "20/zero/optimizer.pt", 20, "step 3"),
        said.format(tmp_path, "3/whole.json", 3, "the start"),
    ]


@pytest.mark.parametrize("seal_text", ["[1]", "5", '{"zero/optimizer.pt": 5}', '{"zero/optimizer.pt": []}'])
def test_a_seal_of_another_shape_is_damage_and_not_a_crash(tmp_path: Path, seal_text: str) -> None:
    make(tmp_path, 3)
    (tmp_path / "checkpoint-3" / "whole.json").write_text(seal_text)
    assert newest_whole(tmp_path) is None
    drop_damaged(tmp_path)
    assert folders(tmp_path) == []


def test_a_checkpoint_that_was_never_sealed_is_left_to_the_trainer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path, 3)
    make(tmp_path, 6, sealed=False)
    drop_damaged(tmp_path)
    assert (len(folders(tmp_path)), capsys.readouterr().err) == (2, "")


@pytest.mark.parametrize("count", [1, 2])
def test_only_complete_checkpoints_count_among_the_newest_that_are_kept(tmp_path: Path, count: int) -> None:
    for step in (3, 20, 100):
        make(tmp_path, step)
    make(tmp_path, 200, sealed=False)  # just being written
    keep_newest(tmp_path, count)
    assert [one.name for one in folders(tmp_path)] == ["checkpoint-20", "checkpoint-100", "checkpoint-200"][2 - count :]
    shutil.rmtree(tmp_path / "checkpoint-200")
    keep_newest(tmp_path, 3)
    assert len(folders(tmp_path)) == count
