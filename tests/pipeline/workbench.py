"""A folder in which real stages run at smoke size without DVC: code, params and the first stages' outputs."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from types import TracebackType
from typing import Any

from ruamel.yaml import YAML

from selfimprove.core.overlay import merge
from selfimprove.pipeline.closure import KNOWN
from tests.support.profiles import profile
from tests.support.repo_copy import copy_parts

ROOT = Path(__file__).resolve().parents[2]
CODE = ("selfimprove", "stages", "requirements/runtime.lock", "data/sources.yaml")
PARAMS = """
rise:
  tasks: {demonstrations: 96, train: 12, dev: 2, test: 6}
  env: {few_shot: false}
  engines: {student: {replicas: 1, slots: 4, prefill_rows: 2, context: 256}}
  rows: {base: {train: {epochs: 1.0, row_tokens: 512, max_length: 512, batch_size: 16, save_steps: 2, logging_steps: 1,
    launcher: {kind: single, processes: 1}}}}
  iterations: {iter1: {generate: {tasks: 6, max_tokens: 8}}, iter2: {generate: {tasks: 6, offset: 6, max_tokens: 8}}}
  evaluate: {max_turns: 2, parallel_samples: 2, max_tokens: 8}
agent_r:
  tasks: {demonstrations: 8, layouts: 1, revision_demonstrations: 0, judge_examples: 4, train: 6, dev: 2, test: 4}
  engines: {actor: {replicas: 1, slots: 4, prefill_rows: 2, context: 1024}, expert: {error_rate: 0.6}}
  evaluate: {max_turns: 2, max_tokens: 8, revision_prefix: 1}
  iterations:
    iter1: {generate: {engine: actor, tasks: 3, n_gen: 2, dives: 2, max_depth: 1, max_tokens: 8}}  # the model searches
    iter2:  # the expert does, so that there is something to judge
      init: base
      generate: {engine: expert, tasks: 6, n_gen: 3, dives: 3, max_depth: 7}
      convert: {max_pairs_per_tree: 1, judge_max_tokens: 8}
  rows:
    base: {train: {epochs: 1.0, row_tokens: 1024, max_length: 1024, batch_size: 2, save_steps: 2, logging_steps: 1,
      launcher: {kind: single, processes: 1}}}
    iter2: {init: base}
    more_sft: null
    good_only: null
    direct: null
reflect_rl:
  tasks: {train: 9, dev: 2, test: 3}
  engines:
    policy: {replicas: 1, slots: 4, prefill_rows: 2, context: 256}
    reflector: {replicas: 1, slots: 4, prefill_rows: 2, context: 256}
  generate: {tasks: 3, negative_tasks: 2, max_turns: 16}
  models:
    reflector: &once {train: {epochs: 1, batch_size: 16, row_tokens: 256, max_length: 256, save_steps: 9,
      launcher: {kind: single, processes: 1}}}
    policy: *once
    plain: *once
  evaluate: {eval_reps: 1, max_tokens: 6}
  iterations:
    rl_only: null
    no_reflection: null
    reflect_rl: {rl: {max_steps: 6, episodes: 3, replay_episodes: 2, max_tokens: 6, save_steps: 2,
      launcher: {kind: single, processes: 1}}}
  rows: {rl_only: null, no_reflection: null}
spin:
  tasks: {train: 24, dev: 2, test: 4}
  engines: {policy: {replicas: 1, slots: 4, prefill_rows: 2, context: 512}}
  iterations:
    iter0:
      generate: {start: 0, end: 6, runs: 1, max_turns: 2, retries: 1, max_tokens: 8}
  rows:
    base: {train: {epochs: 1, batch_size: 8, save_steps: 9, launcher: {kind: single, processes: 1}}}
    iter0: {train: {epochs: 2, batch_size: 2, row_tokens: 512, max_length: 512, save_steps: 2, logging_steps: 1,
      launcher: {kind: single, processes: 1}}}
"""
FIRST_STAGES = {
    "rise": [("rise.data", ""), ("base", "rise"), ("rise.finetune", "base")],
    "agent_r": [
        ("agent_r.data", ""), ("base", "agent_r"), ("agent_r.finetune", "base"),
        ("agent_r.beginnings", ""), ("agent_r.generate", "iter2"),
    ],
    "reflect_rl": [
        ("reflect_rl.data", ""), ("reflect_rl.generate", ""), ("reflect_rl.convert", ""), ("base", "reflect_rl"),
        ("reflect_rl.finetune", "reflector"), ("reflect_rl.finetune", "policy"),
    ],
    "spin": [
        ("spin.data", ""), ("base", "spin"), ("spin.finetune", "base"), ("spin.generate", "iter0"),
        ("spin.convert", "iter0"),
    ],
}  # fmt: skip


@dataclass(frozen=True)
class Ran:
    """The outcome of a stage: its exit code or the signal that killed it, its standard error, and the work it did."""

    code: int | None
    signal: int | None
    stderr: str
    log: list[str]

    @property
    def lines(self) -> list[str]:
        """Standard error, split into lines."""
        return self.stderr.splitlines()


class Forks:
    """A process that runs ``stage_forks``; a context manager."""

    def __init__(self, code: Path) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{code}{os.pathsep}{ROOT}"}
        for name in [name for name in environment if name.startswith(("SELFIMPROVE_", "OPENAI_", "DATA_MIRROR"))]:
            del environment[name]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.pipeline.stage_forks"],
            cwd=code, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def run(self, cwd: Path, stage: str, item: str = "", **more: Any) -> Ran:
        """Run ``python -m stages.<stage> <item>`` in ``cwd``; ``more``: ``kill``, ``env``, ``file_limit``."""
        assert self._process.stdin
        assert self._process.stdout
        job = {"module": f"stages.{stage}", "item": item, "cwd": str(cwd), **more}
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return Ran(**json.loads(self._process.stdout.readline()))

    def __enter__(self) -> Forks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


class Workbench:
    """A folder for tests to copy, in which a method's first stages have run, up to the base model's SFT.

    Agent-R's also contains the trees of the expert's search (``iter2``), Reflect-RL's a policy and a reflection model,
    SPIN's the pairs of the first iteration.
    """

    def __init__(
        self, folder: Path, forks: Forks, method: str = "rise", overlay: Mapping[str, Any] | None = None
    ) -> None:
        """``overlay``: merged into the params, here and in every copy."""
        self.folder, self.forks, self._overlay = folder, forks, overlay or {}
        write_params(folder, self._overlay)
        for stage, item in FIRST_STAGES[method]:
            ran = forks.run(folder, stage, item)
            assert ran.code == 0, ran.stderr

    def refused(self, folder: Path, stage: str, item: str = "", **more: Any) -> str:
        """Run a stage that must fail with one sentence and change no published file; return the sentence."""
        before = published(folder)
        ran = self.forks.run(folder, stage, item, **more)
        assert ran.code == 2, ran.stderr
        said = [line for line in ran.lines if not re.search(r": \d+/\d+ (in|\()", line)]  # omit progress
        assert len(said) == 1, ran.stderr
        assert published(folder) == before
        name = stage.replace(".", "-")
        assert said[0].startswith(f"{name}@{item}: " if item else f"{name}: ")
        assert said[0].endswith(".")
        return said[0]

    def done(self, folder: Path, stage: str, item: str = "") -> list[str]:
        """Run a stage that must succeed, and return the lines of its standard error."""
        ran = self.forks.run(folder, stage, item)
        assert ran.code == 0, ran.stderr
        return ran.lines

    def copy(self, target: Path, overlay: Mapping[str, Any] | None = None) -> Path:
        """Copy the folder for a test, with ``overlay`` merged into the params."""
        shutil.copytree(self.folder, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*", "__pycache__"))
        (target / KNOWN).parent.mkdir(exist_ok=True)
        shutil.copyfile(self.folder / KNOWN, target / KNOWN)
        if overlay:
            write_params(target, self._overlay, overlay)
        return target


def copy_code(folder: Path) -> Path:
    """Copy the files that stages import and read."""
    copy_parts(CODE, folder)
    return folder


def lines_of(path: Path) -> list[bytes]:
    """The lines of a file, each with its line break."""
    return path.read_bytes().splitlines(keepends=True)


def write_params(folder: Path, *overlays: Mapping[str, Any]) -> None:
    """Write a reduced smoke profile, with everything that determines step counts pinned, and the overlays merged in."""
    yaml = YAML(typ="safe", pure=True)  # otherwise, a changed mapping's comments would be written inside it
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    params = profile("smoke")
    merge(params, yaml.load(PARAMS))
    for overlay in overlays:
        merge(params, overlay)
    out = StringIO()
    yaml.dump(params, out)
    (folder / "params.yaml").write_text(out.getvalue(), encoding="utf-8")


def published(folder: Path) -> dict[str, bytes]:
    """The content of all files under data, models and results, by path."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for top in ("data", "models", "results")
        for path in sorted((folder / top).rglob("*"))
        if path.is_file()
    }


Place = tuple[str, str]
"""A stage's script and its item."""


@dataclass(frozen=True)
class Unbroken:
    """An uninterrupted run: the files it published, its outcome, and the number of its calls to an endpoint."""

    files: dict[str, bytes]
    ran: Ran
    calls: int = 0

    def count(self, word: str) -> int:
        """The number of units of one kind of work that it did."""
        return self.ran.log.count(word)


def killed(bench: Workbench, folder: Path, stage: Place, **more: Any) -> Ran:
    """Run a stage that must be killed before it ends."""
    ran = bench.forks.run(folder, *stage, **more)
    assert ran.signal == signal.SIGKILL, ran.stderr
    return ran


def entry_key(line: bytes) -> str:
    """The key in a line of a journal, which is a checksum followed by JSON."""
    return str(json.loads(line.partition(b" ")[2])["key"])


def kept_by(folder: Path, stage: Place, journals: str = "completions*.journal") -> int:
    """The number of complete entries in a stage's journals."""
    name = "-".join(part for part in (stage[0].replace(".", "-"), stage[1]) if part)
    lines = [
        line
        for file in folder.glob(f".scratch/stages/{name}/*/{journals}")
        for line in file.read_bytes().splitlines(keepends=True)
        if line.endswith(b"\n")
    ]
    assert len({entry_key(line) for line in lines}) == len(lines)
    return len(lines)
