"""Asks git about the repository."""

import subprocess
from pathlib import Path

ABSENT = 127
"""Exit code where git is not installed, as shells say it."""


def git(*words: str, folder: Path = Path()) -> tuple[int, str]:
    """git's exit code and what it says; bytes that are not UTF-8 are replaced."""
    try:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, check=False)
    except FileNotFoundError:
        return ABSENT, ""
    return done.returncode, done.stdout.decode("utf-8", "replace")
