"""A killed training run, started again, ends like an uninterrupted one, and never uses another run's checkpoint."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from selfimprove.core.records import Example, Pair

pytestmark = pytest.mark.slow

PARAMS = {
    "epochs": 2, "batch_size": 4, "micro_batch_tokens": 300, "row_tokens": 200, "max_length": 300, "lr": 1e-3,
    "save_steps": 3, "logging_steps": 4,
}  # fmt: skip
FORK = {**PARAMS, "launcher": {"kind": "fork", "processes": 3}}
LORA = {**PARAMS, "lora": {"rank": 2, "alpha": 4, "dropout": 0.3}}


class Runs:
    """A list of runs that share model and data."""

    def __init__(self, folder: Path, model: Path, data: Sequence[Example | Pair]) -> None:
        self.folder = folder
        kind = "pairs" if isinstance(data[0], Pair) else "examples"
        self._shared = {"model": str(model), kind: [one.model_dump() for one in data]}
        self._list: list[dict[str, Any]] = []

    def add(self, name: str, params: dict[str, Any], **more: Any) -> None:
        paths = {"out": f"{name}/model", "scratch": f"{name}/scratch", "report": f"{name}/report.json"}
        (self.folder / name).mkdir(exist_ok=True)
        self._list.append(
            {**self._shared, **{key: str(self.folder / path) for key, path in paths.items()}, "params": params, **more}
        )

    def go(self) -> list[dict[str, Any]]:
        file = self.folder / "runs.json"
        file.write_text(json.dumps(self._list))
        subprocess.run([sys.executable, "-m", "tests.training.killed_run", str(file)], check=True)
        return json.loads(file.with_suffix(".results").read_text())

    def model(self, name: str) -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in (self.folder / name / "model").iterdir()}

    def report(self, name: str) -> dict[str, Any]:
        report = json.loads((self.folder / name / "report.json").read_text())
        del report["timing"]
        return report


def test_a_run_killed_at_any_moment_resumes_to_the_same_bytes_and_losses(
    tiny: Path, dialogues: Callable[..., list[Example]], tmp_path: Path
) -> None:
    runs = Runs(tmp_path, tiny, dialogues(20))
    runs.add("unbroken", PARAMS)
    runs.add("killed", PARAMS, kill_at_step=2)  # nothing saved yet
    runs.add("killed", PARAMS, kill_at_step=3)  # just before the first checkpoint
    runs.add("killed", PARAMS, kill_at_seal=3)  # during it: written, not sealed
    runs.add("killed", PARAMS, kill_at_step=5)
    runs.add("killed", PARAMS, kill_at_step=8, then_truncate="checkpoint-6/optimizer.pt")  # truncated after sealing
    # Same sizes, other contents: flipped bits, and zeros as after a power loss.
    runs.add("killed", PARAMS, kill_at_step=7, then_flip="checkpoint-6/optimizer.pt")
    runs.add("killed", PARAMS, kill_at_step=8, then_flip="checkpoint-6/model.safetensors")
    runs.add("killed", PARAMS, kill_at_step=8, then_zero="checkpoint-6/scheduler.pt")
    runs.add("killed", PARAMS, kill_at_step=4, then_zero="checkpoint-3/whole.json")  # the only one
    runs.add("killed", PARAMS, kill_at_step=8)
    runs.add("killed", PARAMS, kill_at_seal=9)
    runs.add("killed", PARAMS, kill_at_step=10)  # trained, model not yet written
    runs.add("killed", PARAMS)
    runs.add("unbroken-lora", LORA)  # dropout: the state of the random generator matters too
    runs.add("killed-lora", LORA, kill_at_step=5)
    runs.add("killed-lora", LORA)
    # Another learning rate in the same scratch folder: the other run's checkpoints are not used.
    runs.add("killed", {**PARAMS, "lr": 2e-3}, kill_at_step=1, out=str(tmp_path / "elsewhere"))
    results = runs.go()
    assert [r["signal"] == signal.SIGKILL for r in results] == [False] + [True] * 12 + [False, False, True, False, True]
    # Each run starts one step after the newest intact checkpoint: damage costs 6, and 9 was killed before its seal.
    starts = [result["steps"][0] for result in results]
    assert starts == [1, 1, 1, 1, 1, 4, 4, 4, 4, 4, 1, 7, 7, 10, 1, 1, 4, 1]
    for whole, broken in (("unbroken", "killed"), ("unbroken-lora", "killed-lora")):
        assert runs.model(broken) == runs.model(whole)
        assert runs.report(broken) == runs.report(whole)


def test_forked_processes_end_with_their_stage_and_resume_to_the_same_bytes(
    tiny: Path, dialogues: Callable[..., list[Example]], tmp_path: Path
) -> None:
    runs = Runs(tmp_path, tiny, dialogues(20))
    runs.add("unbroken", FORK)
    runs.add("killed", FORK, kill_at_seal=3)  # while the first process writes its checkpoint
    runs.add("killed", FORK, kill_at_step=4)  # with every process at an arbitrary point
    runs.add("killed", FORK, kill_at_seal=9)
    runs.add("killed", FORK)
    results = runs.go()  # fails if a process outlives its stage
    assert [r["signal"] for r in results] == [0, signal.SIGKILL, signal.SIGKILL, signal.SIGKILL, 0]
    starts = [result["steps"][0] for result in results]
    assert starts in ([1, 1, 1, 4, 7], [1, 1, 1, 7, 7])
    assert runs.model("killed") == runs.model("unbroken")
    assert runs.report("killed") == runs.report("unbroken")


def test_self_play_killed_at_any_moment_resumes_to_the_same_bytes_and_reuses_scores(
    tiny: Path, duels: Callable[..., list[Pair]], tmp_path: Path
) -> None:
    params = {**PARAMS, "validation": 0.2, "optimizer": "adamw"}
    lora = {**LORA, "sft_weight": 0.5}
    runs = Runs(tmp_path, tiny, duels(20))
    runs.add("unbroken", params)
    runs.add("killed", params, kill_at_score=0)
    runs.add("killed", params, kill_at_score=7)
    runs.add("killed", params, kill_at_step=2)  # nothing saved yet
    runs.add("killed", params, kill_at_seal=3)
    runs.add("killed", params, kill_at_step=5)  # after an epoch's evaluation
    runs.add("killed", params, kill_at_step=7, then_truncate="checkpoint-6/optimizer.pt")
    runs.add("killed", params, kill_at_step=8)  # trained, model not yet written
    runs.add("killed", params)
    runs.add("unbroken-lora", lora)
    runs.add("killed-lora", lora, kill_at_step=5)
    runs.add("killed-lora", lora)
    results = runs.go()
    assert [r["signal"] == signal.SIGKILL for r in results] == [False] + [True] * 7 + [False, False, True, False]
    assert [r["steps"][:1] for r in results] == [[1], [], [], [1], [1], [1], [4], [4], [7], [1], [1], [4]]
    for whole, broken in (("unbroken", "killed"), ("unbroken-lora", "killed-lora")):
        assert runs.model(broken) == runs.model(whole)
        assert runs.report(broken) == runs.report(whole)
    for name in ("killed", "killed-lora"):  # one line per pair: existing scores were reused
        [journal] = (tmp_path / name / "scratch" / "opponent").glob("*/0.jsonl")
        assert len(journal.read_text().splitlines()) == 20
