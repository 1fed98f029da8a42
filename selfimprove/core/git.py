"""Runs git commands."""

import os
import subprocess
from pathlib import Path

from selfimprove.core.errors import UserError

NO_REPOSITORY = (
    "this folder is not a git repository, and DVC needs one; clone it, or run "
    "`git init && git add --all && git commit -m start` here"
)
"""Of a folder that was unpacked from an archive or copied without .git."""
ABSENT = 127
"""Exit code if git is not installed, by shell convention."""


def git(*words: str, folder: Path = Path()) -> tuple[int, str]:
    """Exit code and standard output of a git command; bytes that are not UTF-8 are replaced."""
    try:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, check=False)
    except FileNotFoundError:
        return ABSENT, ""
    return done.returncode, done.stdout.decode("utf-8", "replace")


def has_repository(folder: Path) -> bool:
    """Whether a folder, given by its absolute path, or one around it is a git repository, as DVC finds it.

    git need not be installed.
    """
    return any((one / ".git").exists() for one in (folder, *folder.parents))


def check_commit() -> None:
    """Raises: UserError: this folder has no commit to which a DVC experiment could belong, or git refuses it."""
    code, _ = git("rev-parse", "--verify", "--quiet", "HEAD")
    if code == ABSENT:
        raise UserError("git is not installed, and DVC experiments need it; install it.")
    if not code:
        return
    if not has_repository(Path.cwd()):
        raise UserError(f"{NO_REPOSITORY}.")
    found = subprocess.run(["git", "rev-parse", "--git-dir"], capture_output=True, check=False)
    if found.returncode:
        said, *others = found.stderr.decode("utf-8", "replace").strip().splitlines() or [""]
        allow = next((line.strip() for line in others if "safe.directory" in line), None)
        remedy = f"run `{allow}`" if allow else "correct that first"
        raise UserError(f"git refuses this folder ({' '.join(said.split())}), and DVC experiments need it; {remedy}.")
    raise UserError("the repository has no commit yet, and DVC experiments need one; run `git commit` first.")


def identity() -> dict[str, str]:
    """The author of commits, as variables that git and DVC read.

    Raises:
        UserError: git knows no name or no address.
    """
    found: dict[str, str] = {}
    for key in ("name", "email"):
        said = [os.environ.get(f"GIT_{role}_{key.upper()}") for role in ("COMMITTER", "AUTHOR")]
        value = next(filter(None, said), None) or git("config", f"user.{key}")[1].strip()
        if not value:
            raise UserError(
                f"git has no user.{key}, which a DVC experiment needs; run `git config --global user.{key} …` first."
            )
        found |= {f"GIT_{role}_{key.upper()}": value for role in ("COMMITTER", "AUTHOR")}
    return found
