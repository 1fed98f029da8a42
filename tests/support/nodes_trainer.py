"""Trains over two nodes in a separate process, for tests that kill it or a node; prints the steps and losses.

``python -m tests.support.nodes_trainer FOLDER MODEL 1 '{"kind": "slurm"}'`` reads ``FOLDER/examples.jsonl``, writes a
checkpoint after every step and the trained model to ``FOLDER/model``. With ``{}`` two processes on this machine train
in the same way.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from selfimprove.core.records import Example, read_jsonl, write_jsonl
from selfimprove.engines.cluster.config import ClusterParams
from selfimprove.training.config import FinetuneParams
from selfimprove.training.launch import finetune
from tests.support.repo_copy import ROOT


class Training:
    """A training run in a separate process, whose steps can be followed.

    ``folder`` is created with the examples unless a killed run has left it. ``more`` is added to the environment.
    """

    def __init__(
        self,
        folder: Path,
        model: Path,
        examples: Sequence[Example],
        more: dict[str, str] | None = None,
        *,
        save_steps: int = 1,
        **cluster: Any,
    ) -> None:
        self.folder = folder
        if not folder.exists():
            folder.mkdir()
            write_jsonl(folder / "examples.jsonl", examples)
        self.process = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, str(folder), str(model), str(save_steps), json.dumps(cluster)],
            env={**os.environ, **(more or {})},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def beside(self, name: str) -> Path:
        """A new folder with the same examples, for another run."""
        folder = self.folder.with_name(name)
        folder.mkdir()
        shutil.copy(self.folder / "examples.jsonl", folder)
        return folder

    def reach(self, step: int) -> list[int]:
        """Wait for this step; returns the steps up to it."""
        assert self.process.stdout is not None
        steps: list[int] = []
        while not steps or steps[-1] < step:
            line = self.process.stdout.readline()
            assert line, self.process.communicate()[1]
            steps += _steps([line])
        return steps

    def end(self) -> tuple[list[int], list[Any], str]:
        """Wait for the end; returns the steps not yet returned, the losses, and stderr."""
        out, said = self.process.communicate(timeout=800)
        assert self.process.returncode == 0, said
        *lines, losses = out.splitlines()
        return _steps(lines), json.loads(losses), said

    def model(self) -> dict[str, bytes]:
        """The trained model's files."""
        return {file.name: file.read_bytes() for file in (self.folder / "model").iterdir()}


def _steps(lines: Sequence[str]) -> list[int]:
    """The steps in the printed lines; Ray may print other lines."""
    return [int(line.removeprefix("step ")) for line in lines if line.startswith("step ")]


def main(folder: Path, model: Path, save_steps: int, cluster: ClusterParams) -> None:
    """Train to the end."""
    here = cluster.kind == "none"
    cfg = FinetuneParams.model_validate(
        {
            "batch_size": 4,
            "micro_batch_tokens": 300,
            "row_tokens": 150,
            "max_length": 300,
            "lr": 1e-3,
            "save_steps": save_steps,
            "logging_steps": 1,
            "launcher": {"kind": "torchrun", "processes": 2} if here else {"kind": "torchrun", "nodes": 2},
        }
    )
    report = finetune(
        model,
        list(read_jsonl(folder / "examples.jsonl", Example)),
        folder / "model",
        cfg,
        scratch=folder / "scratch",
        seed=3,
        threads=1,
        progress=lambda done, *_: print(f"step {done}", flush=True),
        cluster=cluster,
    )
    print(json.dumps(report.loss), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), ClusterParams.model_validate(json.loads(sys.argv[4])))
