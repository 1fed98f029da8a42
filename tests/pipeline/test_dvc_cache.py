"""DVC's cache shares files with the working folder (hard links, .dvc/config), and no run writes into one of them."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.support.repo_copy import copy_repo, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

WARM = ("python", "-m", "selfimprove.pipeline.warm")  # as `make repro` does
MODEL = Path("models/rise/base/model.safetensors")


def cached(folder: Path) -> dict[Path, int]:
    """The cache's files and their modification times; asserts that each file's content has the MD5 hash in its name."""
    files = [path for path in (folder / ".dvc/cache/files/md5").rglob("*") if path.is_file()]
    for file in files:
        assert hashlib.md5(file.read_bytes()).hexdigest() == file.parent.name + file.stem, file
    return {file: file.stat().st_mtime_ns for file in files}


def second_names(folder: Path) -> list[Path]:
    """All hard links to the trained model's weights."""
    return [path for path in folder.rglob("*") if path.is_file() and path.samefile(folder / MODEL)]


def test_runs_after_a_checkout_leave_every_cached_file_unchanged(tmp_path: Path) -> None:
    repo = copy_repo(tmp_path / "repo")
    run(repo, *WARM, "dvc", "repro", "rise-finetune@base")
    first = cached(repo)
    # Stored once, with links in the cache, in models, and in scratch for a re-run with the same identity.
    assert sorted(path.relative_to(repo).parts[0] for path in second_names(repo)) == [".dvc", ".scratch", "models"]
    assert (repo / MODEL).stat().st_mode & 0o222 == 0  # DVC makes it read-only, also for editors

    for place in ("models", "data", "results", ".scratch"):
        shutil.rmtree(repo / place)
    run(repo, "git", "checkout", "--", "data")
    run(repo, "dvc", "checkout", "--quiet", "inputs", "rise-data", "base@rise", "rise-finetune@base")
    trained = (repo / MODEL).read_bytes()

    run(repo, "python", "-m", "stages.rise.finetune", "base")  # without DVC, over outputs that are links into the cache
    assert cached(repo) == first
    assert (repo / MODEL).read_bytes() == trained

    # Through DVC, which deletes outputs first. With epochs: 0 the new model is a link to the start model.
    yaml = YAML()
    params = yaml.load(repo / "params.yaml")
    params["rise"]["rows"]["base"]["train"]["epochs"] = 0
    yaml.dump(params, repo / "params.yaml")
    run(repo, *WARM, "dvc", "repro", "rise-finetune@base")
    assert cached(repo).items() > first.items()
    assert (repo / MODEL).samefile(repo / "models/rise/start/model.safetensors")
