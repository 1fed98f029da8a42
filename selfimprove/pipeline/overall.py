"""Progress of a whole ``dvc repro``: adds ``stage 12 of 89, at most about 14 min left`` to DVC's line for each stage.

DVC reports for each stage in turn that it runs, did not change, or was restored; these lines are counted. Durations are
those of each stage's last run here (``.scratch/stages.json``: seconds by DVC's stage name). Which of the remaining
stages will be skipped is unknown until DVC reaches them, hence "at most".
"""

import json
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from selfimprove.core.errors import UserError
from selfimprove.core.publish import write_json
from selfimprove.core.yaml import read_yaml
from selfimprove.pipeline.params import METHODS
from selfimprove.pipeline.recorded import of_method, planned

SECONDS = Path(".scratch/stages.json")
ALWAYS = "inputs"
"""The stage that runs every time, in a second."""

_NAMED = re.compile(r"(?:Running stage|Stage|Restored stage) '([^']+)'")


class Overall:
    """Adds the position to DVC's lines. ``goals``: the targets of ``dvc repro``."""

    def __init__(self, goals: Sequence[str]) -> None:
        self._goals = goals
        self._names: list[str] = []
        self._met: set[str] = set()
        self._running, self._since = "", 0.0

    def line(self, line: str) -> str:
        """A line of DVC's output, with the position added if it announces a running stage."""
        found = _NAMED.match(line)
        if found is None:
            return line
        self.end()
        self._met.add(found[1])
        if not line.startswith("Running"):
            return line
        self._running, self._since = found[1], time.monotonic()
        if found[1] == ALWAYS:
            return line
        if not self._names:  # deferred: a run without changes reads no files
            self._names = stage_names(self._goals)
        return f"{line.rstrip().rstrip(':')} ({self._position()}):\n"

    def end(self) -> None:
        """Record the duration of the running stage, which has ended without a known failure."""
        if self._running:
            keep_seconds(self._running, time.monotonic() - self._since)
            self._running = ""

    def _position(self) -> str:
        names = set(self._names) | self._met
        text = f"stage {len(self._met)} of {len(names)}"
        known = known_seconds()
        left = [known.get(name) for name in names - self._met | {self._running}]
        if any(one is None for one in left):
            return text
        seconds = sum(one for one in left if one is not None)
        return f"{text}, at most about {duration(seconds)} left"


def duration(seconds: float) -> str:
    """``14 min``, or ``40 s``."""
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


def stage_names(goals: Sequence[str], root: Path = Path()) -> list[str]:
    """DVC's names of all stages that the goals depend on: ``report`` on every stage, ``rise-report`` on RISE's."""
    stages = planned(read_yaml(root / "dvc.yaml")["stages"], read_yaml(root / "params.yaml"))
    names = [name for name, _ in stages]
    methods = [goal.removesuffix("-report") for goal in goals if goal.removesuffix("-report") in METHODS]
    if not methods:
        return names
    return [name for name in names if name == ALWAYS or any(of_method(name, method) for method in methods)]


def keep_seconds(stage: str, seconds: float) -> None:
    """Record a stage's duration."""
    with suppress(OSError, UserError):  # a full disk only costs the next run its time estimates
        write_json(SECONDS, known_seconds() | {stage: round(seconds, 1)})


def known_seconds(root: Path = Path()) -> dict[str, float]:
    """Stage -> duration of its last run in this folder, in seconds."""
    try:
        value = json.loads((root / SECONDS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    found = value.items() if isinstance(value, dict) else ()
    return {name: seconds for name, seconds in found if type(seconds) in (int, float)}
