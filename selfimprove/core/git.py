"""Runs git commands."""

import subprocess
from pathlib import Path

ABSENT = 127
"""Exit code if git is not installed, by shell convention."""


def git(*words: str, folder: Path = Path()) -> tuple[int, str]:
    """Exit code and standard output of a git command; bytes that are not UTF-8 are replaced."""
    try:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, check=False)
    except FileNotFoundError:
        return ABSENT, ""
    return done.returncode, done.stdout.decode("utf-8", "replace")
