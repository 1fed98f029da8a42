"""DVC's cache shares its files with the working folder (hard links, .dvc/config): no run writes into one of them."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.support.repo_copy import copy_repo, run

pytestmark = pytest.mark.timeout(600)

WARM = ("python", "-m", "selfimprove.pipeline.warm")  # as `make repro` does
MODEL = Path("models/rise/base/model.safetensors")


def cached(folder: Path) -> dict[Path, int]:
    """The cache's files and when they were last written; each has the content that its name, the MD5 hash, says."""
    files = [path for path in (folder / ".dvc/cache/files/md5").rglob("*") if path.is_file()]
    for file in files:
        assert hashlib.md5(file.read_bytes()).hexdigest() == file.parent.name + file.stem, file
    return {file: file.stat().st_mtime_ns for file in files}


def second_names(folder: Path) -> list[Path]:
    """Where the trained model's weights lie: every name of that one file."""
    return [path for path in folder.rglob("*") if path.is_file() and path.samefile(folder / MODEL)]


def test_runs_after_a_checkout_leave_every_cached_file_as_it_was(tmp_path: Path) -> None:
    repo = copy_repo(tmp_path / "repo")
    run(repo, *WARM, "dvc", "repro", "rise-finetune@base")
    first = cached(repo)
    # Stored once: a name in the cache, one where it belongs, and one in scratch, for a re-run of the same identity.
    assert sorted(path.relative_to(repo).parts[0] for path in second_names(repo)) == [".dvc", ".scratch", "models"]
    assert (repo / MODEL).stat().st_mode & 0o222 == 0  # DVC takes the right to write, so an editor can't either

    for place in ("models", "data", "results", ".scratch"):
        shutil.rmtree(repo / place)
    run(repo, "git", "checkout", "--", "data")
    run(repo, "dvc", "checkout", "--quiet", "inputs", "rise-data", "base@rise", "rise-finetune@base")
    trained = (repo / MODEL).read_bytes()

    run(repo, "python", "-m", "stages.rise.finetune", "base")  # by hand, over outputs that are links into the cache
    assert cached(repo) == first
    assert (repo / MODEL).read_bytes() == trained

    # Through DVC, which deletes outputs first. With epochs: 0 the new model is a second name of the old one.
    yaml = YAML()
    params = yaml.load(repo / "params.yaml")
    params["rise"]["rows"]["base"]["train"]["epochs"] = 0
    yaml.dump(params, repo / "params.yaml")
    run(repo, *WARM, "dvc", "repro", "rise-finetune@base")
    assert cached(repo).items() > first.items()
    assert (repo / MODEL).samefile(repo / "models/rise/start/model.safetensors")
