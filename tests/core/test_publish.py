"""Files are published completely or not at all."""

from __future__ import annotations

import errno
import json
import math
import os
import resource
import shutil
from pathlib import Path

import pytest

from selfimprove.core.errors import UserError, refusal
from selfimprove.core.publish import aside, link_copy, publish, write_json, write_text
from selfimprove.core.tables import write_csv


def folder(path: Path, **files: str) -> Path:
    path.mkdir(parents=True)
    for name, text in files.items():
        (path / name).write_text(text)
    return path


def test_publishing_a_folder_replaces_an_existing_folder_completely(tmp_path: Path) -> None:
    target = folder(tmp_path / "out/model", old="1", both="1")
    publish(folder(tmp_path / "new", both="2"), target)
    assert {path.name: path.read_text() for path in target.iterdir()} == {"both": "2"}
    publish(folder(tmp_path / "newer", both="3"), target)
    assert (target / "both").read_text() == "3"
    assert not (tmp_path / "newer").exists()


def test_publishing_a_file_replaces_a_file_or_folder_and_creates_its_parents(tmp_path: Path) -> None:
    for text in ("1", "2"):
        (tmp_path / "new").write_text(text)
        publish(tmp_path / "new", tmp_path / "a/b/out")
        assert (tmp_path / "a/b/out").read_text() == text
    folder(tmp_path / "place", x="")
    (tmp_path / "new").write_text("3")
    publish(tmp_path / "new", tmp_path / "place")
    assert (tmp_path / "place").read_text() == "3"


def test_publishing_replaces_a_symbolic_link_instead_of_writing_through_it(tmp_path: Path) -> None:
    cache = folder(tmp_path / "cache", x="cached")
    (tmp_path / "out").symlink_to(cache)
    (tmp_path / "new").write_text("fresh")
    publish(tmp_path / "new", tmp_path / "out")
    assert ((tmp_path / "out").read_text(), (cache / "x").read_text()) == ("fresh", "cached")


@pytest.mark.parametrize("kind", ["file", "link", "dangling link"])
def test_publishing_a_folder_replaces_a_file_or_a_symbolic_link(tmp_path: Path, kind: str) -> None:
    cache, target = folder(tmp_path / "cache", x="cached"), tmp_path / "place/out"
    target.parent.mkdir()
    if kind == "file":
        target.write_text("old")
    else:
        target.symlink_to(cache if kind == "link" else tmp_path / "nowhere")
    publish(folder(tmp_path / "new", x="fresh"), target)
    assert ((target / "x").read_text(), (cache / "x").read_text()) == ("fresh", "cached")
    assert list(target.parent.iterdir()) == [target]


def test_a_linked_copy_shares_the_bytes_and_survives_the_original(tmp_path: Path) -> None:
    source = folder(tmp_path / "a", x="1")
    folder(source / "deep", y="2")
    link_copy(source, tmp_path / "b")
    assert (tmp_path / "b/x").samefile(source / "x")
    link_copy(source / "x", tmp_path / "c/d/x")
    (source / "x").unlink()
    assert (tmp_path / "b/x").read_text() == (tmp_path / "c/d/x").read_text() == "1"
    assert (tmp_path / "b/deep/y").read_text() == "2"


def test_a_linked_copy_of_a_symbolic_link_is_a_hard_link_of_its_target(tmp_path: Path) -> None:
    cached = folder(tmp_path / "cache", x="1") / "x"
    (tmp_path / "model").mkdir()
    (tmp_path / "model/x").symlink_to(cached)
    link_copy(tmp_path / "model", tmp_path / "again")
    assert not (tmp_path / "again/x").is_symlink()
    assert (tmp_path / "again/x").samefile(cached)


def test_json_has_equal_bytes_for_equal_values_and_is_never_partly_written(tmp_path: Path) -> None:
    write_json(tmp_path / "m/a.json", {"b": 1, "a": {"d": 0.1, "c": "é"}})
    write_json(tmp_path / "m/b.json", {"a": {"c": "é", "d": 0.1}, "b": 1})
    assert (tmp_path / "m/a.json").read_bytes() == (tmp_path / "m/b.json").read_bytes()
    text = '{\n  "a": {\n    "c": "é",\n    "d": 0.1\n  },\n  "b": 1\n}\n'
    assert (tmp_path / "m/a.json").read_bytes() == text.encode()
    for bad in ({"a": math.nan}, {"a": object()}):
        with pytest.raises((ValueError, TypeError)):
            write_json(tmp_path / "m/a.json", bad)
    assert sorted(path.name for path in (tmp_path / "m").iterdir()) == ["a.json", "b.json"]
    assert json.loads((tmp_path / "m/a.json").read_text())["b"] == 1


def test_csv_tables_have_the_columns_of_their_first_row(tmp_path: Path) -> None:
    write_csv(tmp_path / "t.csv", [{"step": 1, "loss": 0.1}, {"step": 2, "loss": 1e-9}])
    assert (tmp_path / "t.csv").read_bytes() == b"step,loss\n1,0.1\n2,1e-09\n"
    write_csv(tmp_path / "empty.csv", [])
    assert (tmp_path / "empty.csv").read_bytes() == b""


def test_a_file_written_aside_replaces_its_target_only_when_complete(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "table.csv"
    write_text(target, "old\n")

    def tear() -> None:
        with aside(target) as part:
            part.write_text("ne")
            assert part.suffix == target.suffix
            assert target.read_text() == "old\n"
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        tear()
    assert {path.name: path.read_text() for path in target.parent.iterdir()} == {"table.csv": "old\n"}
    with aside(target) as part:
        part.write_text("new\r\n", newline="")
    write_text(tmp_path / "lines", "a\r\nb\n")
    assert target.read_bytes() == b"new\r\n"
    assert (tmp_path / "lines").read_bytes() == b"a\r\nb\n"
    assert len(list(target.parent.iterdir())) == 1


@pytest.fixture
def file_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every folder is a file system of its own: a rename between two of them fails.

    This is simulated, since a test cannot mount one.
    """
    rename = os.replace

    def replace(source: Path, target: Path) -> None:
        if Path(source).parent.name != Path(target).parent.name:
            raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(source))
        rename(source, target)

    monkeypatch.setattr(os, "replace", replace)


@pytest.mark.usefixtures("file_systems")
def test_folders_and_files_can_be_published_to_another_file_system(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    for number in ("1", "2"):
        publish(folder(tmp_path / "here" / number, both=number), tmp_path / "there/out")
        assert (tmp_path / "there/out/both").read_text() == number
        (tmp_path / "here/file").write_text(number)
        publish(tmp_path / "here/file", tmp_path / "there/file")
        assert (tmp_path / "there/file").read_text() == number
    assert sorted(path.name for path in (tmp_path / "there").iterdir()) == ["file", "out"]


@pytest.mark.usefixtures("file_systems")
def test_a_copy_to_another_file_system_that_fails_leaves_the_target_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    publish(folder(tmp_path / "first", both="1"), tmp_path / "there/out")
    with monkeypatch.context() as patch:
        patch.setattr("selfimprove.core.publish.shutil.copytree", full)
        with pytest.raises(OSError, match="No space left"):
            publish(folder(tmp_path / "here/new", both="2"), tmp_path / "there/out")
    assert (tmp_path / "there/out/both").read_text() == "1"
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["out"]
    publish(tmp_path / "here/new", tmp_path / "there/out")
    assert (tmp_path / "there/out/both").read_text() == "2"


def test_leftovers_of_a_killed_process_beside_the_target_are_removed(tmp_path: Path) -> None:
    for left in (".replaced-out-0123", ".part-out"):
        folder(tmp_path / left, half="1")
    folder(tmp_path / ".replaced-other-0123", half="1")
    publish(folder(tmp_path / "new", both="2"), tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".replaced-other-0123", "out"]


def test_a_folder_written_aside_holds_nothing_of_a_killed_process(tmp_path: Path) -> None:
    folder(tmp_path / ".part-out", old="1")
    with aside(tmp_path / "out") as part:
        folder(part, new="2")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["new"]


def test_a_target_that_cannot_be_written_is_reported_by_name_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    folder(tmp_path / "folder", x="kept")
    for target, said in (
        (
            tmp_path / "file/out",
            f"can't be written: {tmp_path}/file can't be created as a folder (File exists); use another path.",
        ),
        (
            tmp_path / "file/deep/out",
            f"can't be written: {tmp_path}/file/deep can't be created as a folder (Not a directory); use another path.",
        ),
        (
            Path("/proc/foo/out"),
            "can't be written: /proc/foo can't be created as a folder (No such file or directory); use another path.",
        ),
        (Path("/proc/out"), "can't be written (No such file or directory); use another path."),
        (tmp_path / ("x" * 255), "can't be written (File name too long); use another path."),
        (tmp_path / "folder", "is a folder; name a file."),
        (Path("."), "is a folder; name a file."),
        (Path("/"), "is a folder; name a file."),
    ):
        with pytest.raises(UserError) as refused:
            write_text(target, "new")
        assert str(refused.value) == f"{target} {said}"
    with pytest.raises(UserError, match="file/out can't be written"):
        publish(folder(tmp_path / "new", x="1"), tmp_path / "file/out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder", "new"]
    assert ((tmp_path / "file").read_text(), (tmp_path / "folder/x").read_text()) == ("kept", "kept")


def test_a_device_or_a_pipe_is_refused_and_not_replaced(tmp_path: Path) -> None:
    """A program run by root once replaced /dev/full for the whole system."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/null")
    (tmp_path / "new").write_text("1")
    for name in ("pipe", "link"):
        for write in (lambda target: write_text(target, "1"), lambda target: publish(tmp_path / "new", target)):
            with pytest.raises(UserError, match=rf"{name} is a device or a pipe; name a file\.$"):
                write(tmp_path / name)
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "new").read_text() == "1"


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The inodes that were flushed to disk, in order; 0 stands for a rename."""
    done: list[int] = []
    fsync, replace = os.fsync, os.replace

    def watched_fsync(descriptor: int) -> None:
        done.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def watched_replace(source: Path, target: Path) -> None:
        done.append(0)
        replace(source, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "replace", watched_replace)
    return done


def inode(path: Path) -> int:
    return path.stat().st_ino


def test_everything_in_a_folder_is_on_the_disk_before_it_gets_its_name_and_then_the_name(
    tmp_path: Path, flushed: list[int]
) -> None:
    (tmp_path / "new/inner").mkdir(parents=True)
    (tmp_path / "new/inner/file").write_text("x")
    (tmp_path / "new/nowhere").symlink_to("gone")  # a link's target is not the folder's
    publish(tmp_path / "new", tmp_path / "out")
    before, after = flushed[: flushed.index(0)], flushed[flushed.index(0) + 1 :]
    assert set(before) == {inode(tmp_path / name) for name in ("out", "out/inner", "out/inner/file")}
    assert after == [inode(tmp_path)]


def test_a_file_is_on_the_disk_before_it_gets_its_name(tmp_path: Path, flushed: list[int]) -> None:
    write_text(tmp_path / "a", "x")
    assert flushed == [inode(tmp_path / "a"), 0]
    (tmp_path / "b").write_text("y")
    flushed.clear()
    publish(tmp_path / "b", tmp_path / "c")
    assert flushed == [inode(tmp_path / "c"), 0, inode(tmp_path)]


def test_a_full_disk_or_an_unreadable_file_in_the_block_is_not_attributed_to_the_target(tmp_path: Path) -> None:
    for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        with pytest.raises(OSError) as full, aside(tmp_path / "out") as part:
            raise OSError(number, os.strerror(number), str(part))
        assert full.value.errno == number
        with pytest.raises(OSError) as full, aside(tmp_path / "out"):
            raise OSError(number, os.strerror(number))  # as raised by write()
        assert full.value.filename == str(tmp_path / "out")
    with pytest.raises(FileNotFoundError), aside(tmp_path / "out"):
        (tmp_path / "gone").read_text()


def test_errors_about_params_yaml_do_not_suggest_another_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "params.yaml").mkdir()
    for here, said in ((tmp_path, "is a folder; move it away."), (Path("/proc"), "can't be written (No such file or")):
        monkeypatch.chdir(here)
        with pytest.raises(UserError) as refused:
            write_text(Path("params.yaml"), "new")
        assert str(refused.value).startswith(f"params.yaml {said}")
        assert "name" not in str(refused.value)
    none = FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")
    assert refusal(none) == (
        "no folder for temporary files can be written; free some space, or set TMPDIR to another folder."
    )
    assert refusal(PermissionError(errno.EACCES, "Permission denied", "params.yaml")) == (
        "params.yaml can't be read or written (Permission denied); fix that."
    )


def test_the_error_of_a_copy_or_a_rename_names_the_target(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(bytes(10_000))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(OSError, match="too large") as full:
            shutil.copyfile(source, target)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert refusal(full.value) == f"{target} can't be written (File too large); free some space and run it again."
    moved = PermissionError(errno.EACCES, "Permission denied", ".scratch/fresh/metrics.json", None, "results/x.json")
    assert refusal(moved) == (
        "results/x.json can't be read or written (Permission denied); fix that, or use another path."
    )
