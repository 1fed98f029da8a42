"""The data that a run reads: each repository's files and bytes, a hash of their contents, and the dropped entries.

    {"name": "rich", "files": 98, "bytes": 1048576, "sha256": "5c0e…", "dropped": {"hidden": 35, "suffix": 1}}

The params do not specify which Python packages a machine has, and in which versions. These rows do: two runs with the
same rows explored the same files (docs/reflect-rl.md, L36), and a stage refuses to explore others than those of its
tasks. They contain no path of the machine.
"""

import os
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from pydantic import ValidationError

from selfimprove.core.errors import UserError
from selfimprove.core.records import Record, load_json
from selfimprove.envs.autoexplore.repos import Dropped, Repo, filtered, open_repos, why_dropped
from selfimprove.envs.autoexplore.sandbox import shown

REPOS_FILE = "repos.json"
"""The rows, beside the tasks."""

_CHUNK = 1 << 24  # hashed bytes of a file: more than any explored file has


class RepoRow(Record):
    """One repository as it was read."""

    name: str
    files: int
    bytes: int
    sha256: str
    dropped: dict[Dropped, int]


class Filtered(NamedTuple):
    """Repositories after the filter, by name, and a row for each repository, including those that became empty."""

    repos: Mapping[str, Repo]
    rows: list[RepoRow]


def filter_repo(folder: Path | str) -> Filtered:
    """The repositories in a folder after the original's filter, with counts (docs/reflect-rl.md, L36).

    Raises:
        UserError: the folder cannot be listed, or nothing in it is left to explore.
    """
    repos = open_repos(folder)
    return Filtered(repos, sorted([*inventory(repos), *_emptied(folder, repos)], key=lambda row: row.name))


def _emptied(folder: Path | str, repos: Mapping[str, Repo]) -> list[RepoRow]:
    """Rows for the repositories in a folder that the filter emptied; hidden folders are not repositories."""
    root = os.path.realpath(folder)
    if any(repo.tree.root == root for repo in repos.values()):  # the folder is one repository
        return []
    rows = []
    for entry in os.scandir(root):
        if entry.is_dir() and not entry.name.startswith(".") and entry.name not in repos:
            reason = why_dropped(Path(entry.path), entry.name, "link" if entry.is_symlink() else "dir")
            dropped = {reason: 1} if reason else dict(filtered(entry.path)[0].dropped)
            rows.append(RepoRow(name=shown(entry.name), files=0, bytes=0, sha256=sha256().hexdigest(), dropped=dropped))
    return rows


def inventory(repos: Mapping[str, Repo]) -> list[RepoRow]:
    """A row for each repository, by name. A file that can no longer be read counts as empty."""
    return [_row(repos[name]) for name in sorted(repos)]


def check_same(repos: Mapping[str, Repo], file: Path) -> None:
    """Check that the repositories are those whose rows are in ``file``.

    Raises:
        UserError: they are others, or have changed since; or the file is damaged.
    """
    now, then = ({row.name: row for row in rows} for rows in (inventory(repos), _read(file)))
    if now != then:
        name = min(name for name in {*now, *then} if now.get(name) != then.get(name))
        raise UserError(
            f"{file}: the tasks were made from other Python packages than those explored here (such as {name}); use "
            "the environment in which they were made, or make new tasks with `dvc repro --force reflect_rl-data`."
        )


def _read(file: Path) -> list[RepoRow]:
    try:
        return [RepoRow.model_validate(row) for row in load_json(file)]
    except (TypeError, ValidationError):
        raise UserError(f"{file} is damaged; restore it with `dvc checkout {file.parent}`.") from None


def _row(repo: Repo) -> RepoRow:
    digest, size = sha256(), 0
    for path in repo.files:
        try:
            data = repo.tree.read(path, _CHUNK)[0]
        except OSError:
            data = b""
        size += len(data)
        digest.update(f"{path}\0{sha256(data).hexdigest()}\n".encode())
    return RepoRow(
        name=repo.name, files=len(repo.files), bytes=size, sha256=digest.hexdigest(), dropped=dict(repo.dropped)
    )
