"""Restores the git branch after a killed experiment.

``dvc exp run`` detaches HEAD while it runs and returns to the branch at its end. If it is killed, HEAD stays detached;
the branch's name is therefore saved beforehand.
"""

from collections.abc import Iterator
from pathlib import Path

from selfimprove.core.git import git
from selfimprove.core.publish import write_text

BRANCH = Path(".scratch/branch")


def keep_branch() -> None:
    """Save the name of the current branch before an experiment; do nothing if HEAD is detached."""
    code, name = git("symbolic-ref", "--quiet", "HEAD")
    if code == 0:
        write_text(BRANCH, name)


def back_on_branch() -> Iterator[str]:
    """Return to the saved branch if an experiment left HEAD detached, and report it; no file is changed."""
    if not BRANCH.is_file():
        return
    name = BRANCH.read_text(encoding="utf-8").strip()
    BRANCH.unlink()
    if git("symbolic-ref", "--quiet", "HEAD")[0] == 0:
        return  # the experiment returned to it, or the user has checked out a branch
    short = name.removeprefix("refs/heads/")
    if git("rev-parse", "HEAD") == git("rev-parse", name):
        git("symbolic-ref", "-m", "back from a killed experiment", "HEAD", name)
        git("reset", "--quiet")  # resets the index only, as DVC does
        stash = git("rev-parse", "--verify", "--quiet", "refs/stash")[0] == 0
        aside = " Missing edits are in `git stash`." if stash else ""
        yield f"a killed experiment left git with a detached HEAD; switched back to branch {short}.{aside}"
    else:
        yield (
            f"a killed experiment left git with a detached HEAD, and there are commits since; `git branch NAME` keeps "
            f"them, and `git switch {short}` goes back."
        )
