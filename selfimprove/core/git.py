"""Runs git commands."""

import os
import subprocess
from pathlib import Path

from selfimprove.core.errors import UserError

ABSENT = 127
"""Exit code if git is not installed, by shell convention."""


def git(*words: str, folder: Path = Path()) -> tuple[int, str]:
    """Exit code and standard output of a git command; bytes that are not UTF-8 are replaced."""
    try:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, check=False)
    except FileNotFoundError:
        return ABSENT, ""
    return done.returncode, done.stdout.decode("utf-8", "replace")


def check_commit() -> None:
    """Raises: UserError: this folder has no commit to which a DVC experiment could belong, or git refuses it."""
    code, _ = git("rev-parse", "--verify", "--quiet", "HEAD")
    if code == ABSENT:
        raise UserError("git is not installed, and DVC experiments need it; install it.")
    if not code:
        return
    found = subprocess.run(["git", "rev-parse", "--git-dir"], capture_output=True, check=False)
    if found.returncode:
        said = " ".join(found.stderr.decode("utf-8", "replace").strip().partition("\n")[0].split())
        raise UserError(f"git refuses this folder ({said}), and DVC experiments need it; correct that first.")
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
