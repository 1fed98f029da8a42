"""``make fetch`` from a shared folder into which somebody else has written.

The transfers themselves are tested with an S3 server, in ``tests/backends/test_remote.py``.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from dvc.repo import Repo
from dvc.stage.cache import _get_cache_hash
from ruamel.yaml import YAML

from selfimprove.pipeline.remote import _explained, fetch, publish
from tests.support.sentences import check_sentence, refused_with

STAGE = "stages: {one: {cmd: mkdir out && echo right > out/file && echo ran >> log, deps: [input], outs: [out]}}\n"


def new_folder(folder: Path, remote: Path) -> Path:
    (folder / ".dvc").mkdir(parents=True)
    (folder / ".dvc/config").write_text(f"[core]\n    no_scm = true\n['remote \"shared\"']\n    url = {remote}\n")
    (folder / "dvc.yaml").write_text(STAGE)
    (folder / "input").write_text("an input\n")
    return folder


def reproduce() -> None:
    with Repo() as repo:
        repo.reproduce()


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A remote to which a folder has published its one stage."""
    remote = tmp_path_factory.mktemp("remote")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(new_folder(tmp_path_factory.mktemp("made") / "here", remote))
        reproduce()
        publish()
    return remote


@pytest.fixture
def shared(published: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that remote. The current folder has the same stage and no results: it fetches the run cache."""
    remote = tmp_path / "shared"
    shutil.copytree(published, remote)
    monkeypatch.chdir(new_folder(tmp_path / "other", remote))
    return remote


def put(shared: Path, content: bytes, suffix: str = "") -> str:
    """Add an object; returns its hash."""
    name = hashlib.md5(content).hexdigest()
    at = shared / "files/md5" / name[:2] / (name[2:] + suffix)
    at.parent.mkdir(parents=True, exist_ok=True)
    at.write_bytes(content)
    return name + suffix


def listing(shared: Path, path: str) -> str:
    return put(shared, json.dumps([{"md5": put(shared, b"forged\n"), "relpath": path}]).encode(), ".dir")


def replace_entry(shared: Path, out: dict[str, object], *, named: bool) -> None:
    """Replace the one entry of the run cache; ``named``: by one that has the right name."""
    (entry,) = shared.glob("runs/*/*/*")
    content = YAML(typ="safe").load(entry)
    content["outs"] = [out]
    entry.unlink()
    with (entry.with_name(_get_cache_hash(content)) if named else entry).open("w") as file:
        YAML(typ="safe").dump(content, file)


FORGERIES: dict[str, Callable[[Path], None]] = {
    "an entry with another path": lambda shared: replace_entry(
        shared, {"path": "selfimprove.py", "hash": "md5", "md5": put(shared, b"forged\n")}, named=False
    ),
    "an entry with a list of files": lambda shared: replace_entry(
        shared, {"path": "out", "hash": "md5", "files": [
            {"relpath": "../selfimprove.py", "md5": put(shared, b"forged\n")}]}, named=True
    ),
    "a folder's list with a path out of it": lambda shared: replace_entry(
        shared, {"path": "out", "hash": "md5", "md5": listing(shared, "../selfimprove.py")}, named=True
    ),
    "a folder's list with a full path": lambda shared: replace_entry(
        shared, {"path": "out", "hash": "md5", "md5": listing(shared, f"{shared.parent}/other/selfimprove.py")},
        named=True
    ),
}  # fmt: skip


@pytest.mark.parametrize("forgery", FORGERIES)
def test_what_is_fetched_cannot_write_outside_of_a_stages_outputs(shared: Path, forgery: str) -> None:
    FORGERIES[forgery](shared)
    with refused_with(f"^{shared}/.* is damaged"):
        fetch(all_runs=True)
    reproduce()
    assert not Path("selfimprove.py").exists()
    assert Path("out/file").read_text() == "right\n"


def test_a_fetched_run_is_not_repeated(shared: Path) -> None:
    fetch(all_runs=True)
    reproduce()
    assert Path("out/file").read_text() == "right\n"
    assert not Path("log").exists()


def test_a_full_disk_is_reported_with_the_file_that_could_not_be_written_and_the_remedy() -> None:
    error = OSError(
        errno.ENOSPC, os.strerror(errno.ENOSPC), "/shared/files/md5/ab/c", None, "/here/.dvc/cache/ab/c.tmp"
    )
    said = _explained(error, "/shared", "read from") or ""
    check_sentence(said)
    assert said.startswith("/here/.dvc/cache/ab/c.tmp can't be written (No space left on device); free some space")
