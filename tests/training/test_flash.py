"""FlashAttention comes from a pre-built kernel or is replaced; this is settled before rows are packed, and reported.

Both the package ``kernels`` and the kernel that it fetches are stand-ins here; the kernel is plain torch for CPUs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from selfimprove.core.chat import ChatFormat
from selfimprove.core.records import Example
from selfimprove.training import flash
from selfimprove.training.config import FinetuneParams
from selfimprove.training.encode import EncodedExample, encode_examples
from selfimprove.training.launch import launch
from selfimprove.training.processes import save_encoded
from selfimprove.training.report import TrainReport
from selfimprove.training.trainer import SftJob

ROOT = Path(__file__).resolve().parents[2]
REVISION = "5f1c0ffee"
# The parts of kernels 0.17 that transformers imports, and a hub with one kernel.
KERNELS = f"""
import os, types
from enum import IntFlag

class Mode(IntFlag):
    INFERENCE = 1
    TRAINING = 2

def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return lambda *a, **k: (lambda one: one)

loaded = []

def get_kernel(name, revision=None, version=None, user_agent=None, trust_remote_code=False):
    assert (name, revision, version, trust_remote_code) == ("kernels-community/flash-attn2", None, 3, False)
    if "HUB_ERROR" in os.environ:
        raise ValueError(os.environ["HUB_ERROR"])
    loaded.append(types.SimpleNamespace(repo_info=types.SimpleNamespace(repo_id=name, revision="{REVISION}")))
    import flash_kernel
    return flash_kernel

def get_loaded_kernels():
    return loaded
"""
# Loss and gradients of packed examples: with the kernel, and with segments, which needs no mask either.
# Then the same kernel with a fault.
COMPARED = """
import json, os, sys
from pathlib import Path
from selfimprove.training import flash
from selfimprove.training.config import FinetuneParams
from selfimprove.training.loading import load_model
from selfimprove.training.objective import weighted_nll
from selfimprove.training.processes import load_encoded
from selfimprove.training.rows import MODEL_INPUTS, render

examples = load_encoded(Path(sys.argv[2]))
told = {}
for attention in ("flash_attention_2", "segments"):
    model, _ = load_model(Path(sys.argv[1]), FinetuneParams(attention=attention), 0)
    rows = tuple((index,) for index in range(len(examples)))
    inputs = render(rows, examples, dict.fromkeys(range(len(examples)), 1.0), 0, attention)
    logits = model(**{key: inputs[key] for key in MODEL_INPUTS if key in inputs}, use_cache=False).logits
    loss = weighted_nll(logits, inputs["input_ids"], inputs["coefficients"])
    loss.backward()
    gradients = [float(parameter.grad.norm()) for parameter in model.parameters()]
    told[attention] = [flash.running(model), [float(loss.detach()), *gradients]]
os.environ["KERNEL_FACTOR"] = "2"
try:
    flash.attend()
except RuntimeError as error:
    told["fault"] = str(error)
print(json.dumps(told))
"""
FLASH = FinetuneParams(attention="flash_attention_2", device="cuda", dtype="bfloat16")


@pytest.fixture
def kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-in, installed for processes that start from now on."""
    site = tmp_path / "site"
    for name, text in {
        "kernels/__init__.py": KERNELS,
        "flash_kernel.py": (ROOT / "tests/support/flash_kernel.py").read_text(),
        "kernels-0.17.2.dist-info/METADATA": "Metadata-Version: 2.1\nName: kernels\nVersion: 0.17.2\n",
        "kernels-0.17.2.dist-info/top_level.txt": "kernels\n",
    }.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    monkeypatch.syspath_prepend(site)
    return site


@pytest.mark.slow
def test_with_the_kernel_nothing_changes_and_nothing_is_printed(
    kernels: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert flash.settle(FLASH) == FLASH
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_without_a_kernel_one_sentence_names_the_attention_that_runs_instead(
    kernels: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HUB_ERROR", "No route to host. Set trust_remote_code=True")
    assert flash.settle(FLASH) == FLASH.model_copy(update={"attention": "segments"})
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "train.attention: flash_attention_2 cannot run here (No route to host); segments runs instead"
    )


def test_without_the_package_rows_are_planned_for_segments(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on a GPU machine without the locked environment; only the GPU is simulated."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    folders: list[Path] = []

    def train(job: SftJob, sequences: Sequence[EncodedExample], progress: Any) -> TrainReport:
        folders.append(job.checkpoints)
        assert job.params.attention == "segments"
        return TrainReport.model_construct(attention=job.params.attention)

    for params in (FLASH, FLASH.model_copy(update={"attention": "segments"})):
        job = SftJob(model_dir=tiny, out_dir=tmp_path, checkpoints=tmp_path, params=params, seed=0, threads=1)
        launch(job, tmp_path, [EncodedExample([1, 2], [0.0, 1.0])], train, TrainReport, None)
    assert "(the package kernels, which provides it, is not installed)" in capsys.readouterr().err
    assert folders[0] == folders[1]  # the same run from here on: each can resume from the other's checkpoint


@pytest.mark.slow
def test_packed_rows_have_the_loss_of_separate_examples_and_a_faulty_kernel_is_detected(
    kernels: Path, tiny: Path, tmp_path: Path, dialogues: Callable[[int], list[Example]]
) -> None:
    examples, _ = encode_examples(dialogues(5), ChatFormat.load(tiny), 300)
    save_encoded(tmp_path / "examples.npz", examples)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(kernels), str(ROOT)])}
    command = [sys.executable, "-c", COMPARED, str(tiny), str(tmp_path / "examples.npz")]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["flash_attention_2"][0] == f"kernels-community/flash-attn2@{REVISION}"
    assert told["segments"][0] == "segments"
    assert told["flash_attention_2"][1] == pytest.approx(told["segments"][1], rel=1e-4)
    assert told["fault"] == "it computes wrong values on this GPU"
