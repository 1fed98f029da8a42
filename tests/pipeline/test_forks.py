"""Which stages are forked from the warm helper on a machine with a GPU. (``make test-gpu`` tests it on one.)"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from selfimprove.pipeline import forks
from selfimprove.pipeline.forks import NVML_CHECK, QUERY_CUDA, tried_in_fork, uses_gpu, uses_vllm
from tests.pipeline.warm_helper import start
from tests.support.repo_copy import ROOT

LOADED = "import sys\nprint('torch' in sys.modules)\n"
"""A stage that has been forked from the helper finds torch imported."""


@pytest.mark.parametrize(
    ("params", "gpu", "vllm"),
    [
        ({"rows": {"iter1": {"train": {"lr": 0.1, "device": "cuda"}}}}, True, False),
        ({"engines": [{"engine": "openai"}, {"engine": "vllm"}]}, True, True),
        ({"sft": {"device": "cpu"}, "engines": {"actor": {"engine": "transformers"}}}, False, False),
        (None, False, False),
    ],
)
def test_params_use_a_gpu_if_any_part_of_them_does(params: Any, gpu: bool, vllm: bool) -> None:
    assert (uses_gpu(params), uses_vllm(params)) == (gpu, vllm)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "trial", "forked"),
    [
        ("transformers, device: cuda", "lambda: True", True),
        ("transformers, device: cuda", "lambda: False", False),
        ("transformers, device: cuda", "lambda: 1 / 0", False),
        ("vllm", "lambda: True", False),
    ],
)
def test_a_stage_that_uses_a_gpu_is_forked_only_if_a_fork_of_the_helper_has_reached_the_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, engine: str, trial: str, forked: bool
) -> None:
    (name,) = NVML_CHECK
    monkeypatch.delenv(name, raising=False)  # importing DeepSpeed sets it
    work = f"{LOADED}import os\nprint(os.environ.get('{name}'))\n"
    helper = f"from selfimprove.pipeline import warm\nwarm.gpu_computes = {trial}"
    said, _ = start(tmp_path, work, engine=engine, helper=helper).communicate(timeout=240)
    assert said.split("\n")[:2] == [str(forked), "None"]


@pytest.mark.slow
def test_no_stage_is_forked_from_a_helper_that_has_queried_cuda(tmp_path: Path) -> None:
    queried = "from selfimprove.pipeline import warm\nwarm.cuda_unused = lambda: False"
    said, _ = start(tmp_path, LOADED, helper=queried).communicate(timeout=240)
    assert said.split("\n")[0] == "False"


@pytest.mark.slow
def test_the_helper_leaves_packages_that_initialise_cuda_to_the_stages(tmp_path: Path) -> None:
    for name in QUERY_CUDA:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("print('initialised')\n")
        (tmp_path / f"{name}-1.0.dist-info").mkdir()
        (tmp_path / f"{name}-1.0.dist-info/METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    program = "from selfimprove.pipeline import warm\nwarm._import()\nprint('imported')\n" + "\n".join(
        f"import {name}" for name in QUERY_CUDA
    )
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, timeout=240
    )
    assert done.stdout.split() == ["imported", *["initialised"] * len(QUERY_CUDA)]


@pytest.mark.slow
def test_without_a_gpu_a_sum_on_it_fails_and_cuda_is_unused() -> None:
    program = "from selfimprove.pipeline.forks import *\nprint(*map(tried_in_fork, (cuda_unused, gpu_computes)))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True, text=True, check=True, timeout=240,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("True False\n", "")


def test_a_trial_that_hangs_counts_as_failed_and_its_process_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forks, "TRIAL_SECONDS", 0.2)
    before = psutil.Process().children()

    def hang() -> bool:
        time.sleep(3600)
        return True

    assert not tried_in_fork(hang)
    (trial,) = set(psutil.Process().children()) - set(before)
    assert trial.wait(timeout=60) == -signal.SIGKILL
