"""Runs independent stages in parallel: ``make repro`` on machines with more cores than a stage uses.

``python -m selfimprove.pipeline.parallel 4 report`` runs the out-of-date stages among the dependencies of ``report``,
four at once. Each runs in its own DVC process (``dvc repro --single-item``), which decides whether the stage has to run
and records it in dvc.lock; DVC's own locks keep these processes apart. A stage waits only for the stages whose outputs
it reads. Ready stages start in order of their critical path, longest first. The order affects no result, which depends
on the stage's inputs, params and number of threads alone. With ``--set "key=value …"`` (``make exp``) the settings are
written to params.yaml first, and the finished run is saved as a DVC experiment.
"""

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import pairwise
from threading import Event
from typing import IO, TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from selfimprove.core.cli import INTERRUPTED, one_sentence
from selfimprove.core.errors import for_terminal
from selfimprove.core.yaml import read_yaml
from selfimprove.pipeline.branch import keep_branch
from selfimprove.pipeline.dvc_files import DVC
from selfimprove.pipeline.exp import write_settings
from selfimprove.pipeline.forks import uses_gpu
from selfimprove.pipeline.jobs import gpu_shares
from selfimprove.pipeline.overall import ALWAYS, duration, keep_seconds, known_seconds
from selfimprove.pipeline.params import PARAMS_FILE

if TYPE_CHECKING:
    from dvc.repo import Repo

POLL_SECONDS = 0.1
UNKNOWN_SECONDS = 10.0
"""Assumed duration of a stage that has not run here yet."""

OF_DVC = re.compile(
    r"Running stage |(Updat|Generat)ing lock file|To track the changes|To enable auto staging|Use `dvc push`|"
    r"\s*git add |\s*dvc config |Data and pipelines |ERROR: failed to reproduce .* exited with (2|130)$|\s*$"
)
"""DVC's lines about every stage, which are hidden: the lines printed here or by the stage itself say the same."""
COMMAND = "> "
"""Prefix of the line with a stage's command, which DVC prints after "Running stage …"."""
TAIL_BYTES = 2000
"""Length of the end of a stage's output in which its last line is searched."""

Needs = Mapping[str, Set[str]]
"""Stage -> the stages whose outputs it reads."""


@dataclass(frozen=True)
class _Job:
    """A running stage: its DVC process, the output of both, its start time and its additional environment."""

    process: subprocess.Popen[bytes]
    output: IO[bytes]
    since: float
    share: Mapping[str, str]

    def printed(self, most: int | None = None) -> str:
        """The output so far, or its last ``most`` bytes, read without moving the file position that children share."""
        file = self.output.fileno()
        size = os.fstat(file).st_size
        start = 0 if most is None else max(0, size - most)
        return os.pread(file, size - start, start).decode("utf-8", "replace")

    def lines(self, most: int | None = None) -> list[str]:
        """The stage's own lines and those of DVC's lines that are specific to it."""
        lines = self.printed(most).splitlines()
        commands = {line for before, line in pairwise(lines) if "Running stage " in before and line.startswith(COMMAND)}
        return [for_terminal(line) for line in lines if not OF_DVC.match(line) and line not in commands]

    @property
    def ran(self) -> bool:
        """Whether DVC ran the stage rather than finding it unchanged or in its cache."""
        return "Running stage " in self.printed()


class Parallel:
    """Runs stages in parallel.

    Args:
        needs: the stages to run, with their dependencies among these.
        shares: one set of environment variables (such as its GPUs) for each concurrent stage.
        stop: once set, no further stage starts, and running stages are awaited.
    """

    def __init__(self, needs: Needs, shares: Sequence[Mapping[str, str]], stop: Event) -> None:
        self._needs, self._free, self._jobs, self._stop = needs, list(shares), len(shares), stop
        known = known_seconds()
        self._seconds = {name: known.get(name, UNKNOWN_SECONDS) for name in needs}
        self._estimated = any(name not in known for name in needs)
        self._way = ways(needs, self._seconds)
        self._waiting = sorted(needs, key=lambda name: (-self._way[name], name))
        self._at_work: dict[str, _Job] = {}
        self._done: set[str] = set()
        self._code = 0
        self._console = Console(stderr=True)

    def run(self) -> int:
        """Return the exit code: 0, that of the first failed stage, or 130 if the run was interrupted."""
        spinner = Spinner("dots")
        # Otherwise rich would redirect printed lines to the terminal even if standard output is a file.
        both = self._console.is_terminal and sys.stdout.isatty()
        with Live(spinner, console=self._console, transient=True, redirect_stdout=both) as live:
            try:
                while self._at_work or (self._waiting and not self._ends):
                    self._begin()
                    time.sleep(POLL_SECONDS)
                    for name, job in list(self._at_work.items()):
                        if job.process.poll() is not None:
                            self._end(name, job)
                    if self._console.is_terminal:
                        spinner.update(text=self._shown())
                        live.refresh()
            finally:
                for job in self._at_work.values():
                    job.process.wait()
        return INTERRUPTED if self._stop.is_set() else self._code

    @property
    def _ends(self) -> bool:
        return self._stop.is_set() or self._code != 0

    def _begin(self) -> None:
        ready = [name for name in self._waiting if self._needs[name] <= self._done]
        for name in ready[: 0 if self._ends else len(self._free)]:
            self._waiting.remove(name)
            share = self._free.pop(0)
            output = tempfile.TemporaryFile()  # noqa: SIM115  (closed when the stage has ended)
            # Children inherit the run lock's file descriptor, so the lock stays held if this process is killed.
            process = subprocess.Popen(
                [*DVC, "--wait-for-lock", "repro", "--single-item", name],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, close_fds=False, env={**os.environ, **share},
            )  # fmt: skip
            self._at_work[name] = _Job(process, output, time.monotonic(), share)
            place = f"stage {len(self._done) + len(self._at_work)} of {len(self._needs)}"
            left = "" if self._estimated else f", about {duration(self._left())} left"
            print(f"Running stage '{name}' ({place}, {len(self._at_work)} running{left})", flush=True)  # as DVC does

    def _end(self, name: str, job: _Job) -> None:
        del self._at_work[name]
        self._free.append(job.share)
        code = job.process.returncode
        with job.output:
            lines, ran = job.lines(), job.ran
        if code and self._stop.is_set():  # hide tracebacks of a DVC interrupted during start-up
            lines = [line for line in lines if line.startswith(f"{name}:")]
        for line in lines:
            self._console.print(line, markup=False, highlight=False, emoji=False, soft_wrap=True)
        if code == 0:
            self._done.add(name)
            if ran:
                keep_seconds(name, time.monotonic() - job.since)
        elif not self._ends:
            self._code = code if code > 0 else 128 - code
            others = f"; {', '.join(self._at_work)} will still be finished" if self._at_work else ""
            print(f"stage {name} failed{others}. Fix the error above; the same command resumes there.", file=sys.stderr)

    def _left(self) -> float:
        """Remaining seconds, estimated from each stage's last run: the critical path or work / jobs, if longer."""
        left = [name for name in self._needs if name not in self._done]
        work = sum(self._seconds[name] for name in left) / self._jobs
        return max(work, max((self._way[name] for name in left), default=0.0))

    def _shown(self) -> Text:
        """Progress of the running stages, for a terminal."""
        last = {name: (job.lines(TAIL_BYTES) or [f"{name}: begins"])[-1] for name, job in self._at_work.items()}
        return Text("\n  ".join([f"{len(self._done)} of {len(self._needs)} stages done", *last.values()]))


def ways(needs: Needs, seconds: Mapping[str, float]) -> dict[str, float]:
    """Stage -> length of its critical path: seconds from its start to the end of the last stage that depends on it."""
    found: dict[str, float] = {}
    longest = dict.fromkeys(needs, 0.0)  # of the paths of its dependents
    for name in reversed([*TopologicalSorter(needs).static_order()]):
        found[name] = seconds[name] + longest[name]
        for one in needs[name]:
            longest[one] = max(longest[one], found[name])
    return found


def needs_of(repo: "Repo", goals: Sequence[str]) -> dict[str, set[str]]:
    """The goals and all stages that they depend on, each with its direct dependencies."""
    import networkx as nx

    graph = repo.index.graph
    asked = [stage for goal in goals for stage in repo.stage.collect(goal)]
    needed = {stage for goal in asked for stage in (goal, *nx.descendants(graph, goal))}
    return {stage.addressing: {one.addressing for one in graph.successors(stage)} for stage in needed}


def out_of_date(goals: Sequence[str]) -> dict[str, set[str]]:
    """The stages of ``needs_of`` that have changed or depend on a changed one, with their dependencies among these."""
    from dvc.repo import Repo

    from selfimprove.pipeline.dvc_command import take_shortcuts

    take_shortcuts()
    with Repo(_wait_for_lock=True) as repo:
        needs = needs_of(repo, goals)
        stale = set(repo.status(list(goals), with_deps=True)) - {ALWAYS}
    while more := {name for name, those in needs.items() if name not in stale and not those.isdisjoint(stale)}:
        stale |= more
    return {name: needs[name] & stale for name in stale}


def save_experiment(goals: Sequence[str]) -> int:
    """Let DVC save the workspace as an experiment, in which no stage has to run; returns DVC's exit code."""
    keep_branch()
    done = subprocess.run(
        [*DVC, "exp", "run", *goals],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        check=False, close_fds=False,
    )  # fmt: skip
    for line in done.stdout.splitlines():
        if done.returncode or not (OF_DVC.match(line) or line.startswith((COMMAND, "Stage "))):
            print(for_terminal(line), flush=True)
    return done.returncode


@one_sentence()
def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m selfimprove.pipeline.parallel")
    parser.add_argument("jobs", type=int)
    parser.add_argument("goals", nargs="+")
    parser.add_argument("--set", default="")
    args = parser.parse_args()
    stop = Event()  # the terminal interrupts the stages too, and they save their work
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    if args.set:
        write_settings(args.set)
    params = read_yaml(PARAMS_FILE)
    shares = gpu_shares(args.jobs, params) if uses_gpu(params) else [{}] * args.jobs
    code = Parallel({ALWAYS: set()}, [{}], stop).run()  # first: its outputs decide what is out of date
    if code == 0:
        code = Parallel(out_of_date(args.goals), shares, stop).run()
    if code == 0 and args.set:
        code = save_experiment(args.goals)
    sys.exit(code)


if __name__ == "__main__":
    main()
