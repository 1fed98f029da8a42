"""Keeps git's branch through a killed experiment.

``dvc exp run`` leaves the branch while it works, and goes back at its end. Where it is killed, git stays on no branch;
so the branch's name is kept.
"""

from collections.abc import Iterator
from pathlib import Path

from selfimprove.core.git import git
from selfimprove.core.publish import write_text

BRANCH = Path(".scratch/branch")


def keep_branch() -> None:
    """Keep the name of the branch that an experiment is about to leave; on none, nothing."""
    code, name = git("symbolic-ref", "--quiet", "HEAD")
    if code == 0:
        write_text(BRANCH, name)


def back_on_branch() -> Iterator[str]:
    """Go back to the kept branch where an experiment left git on none, and say so; files stay as they are."""
    if not BRANCH.is_file():
        return
    name = BRANCH.read_text(encoding="utf-8").strip()
    BRANCH.unlink()
    if git("symbolic-ref", "--quiet", "HEAD")[0] == 0:
        return  # it went back itself, or a person has chosen a branch
    short = name.removeprefix("refs/heads/")
    if git("rev-parse", "HEAD") == git("rev-parse", name):
        git("symbolic-ref", "-m", "back from a killed experiment", "HEAD", name)
        git("reset", "--quiet")  # the index alone, as DVC does
        stash = git("rev-parse", "--verify", "--quiet", "refs/stash")[0] == 0
        aside = " Missing edits are in `git stash`." if stash else ""
        yield f"a killed experiment left git with a detached HEAD; switched back to branch {short}.{aside}"
    else:
        yield (
            f"a killed experiment left git with a detached HEAD, and there are commits since; `git branch NAME` keeps "
            f"them, and `git switch {short}` goes back."
        )
