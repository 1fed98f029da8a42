"""``run.kernels: portable``: each library uses a single code path and computes the same bits on every processor."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from selfimprove.pipeline import kernels
from tests.pipeline.workbench import copy_code
from tests.support.portable_bits import EXPECTED
from tests.support.repo_copy import ROOT
from tests.support.sentences import refused_with

PROBE = """
import os, sys
import numpy, torch
from selfimprove.pipeline.kernels import PORTABLE
from selfimprove.pipeline.params import RunParams
from selfimprove.pipeline.stage import Stage, stage

@stage("probe", "run", RunParams)
def main(stage):
    print(os.getpid(), stage.item, {**os.environ, **PORTABLE} == os.environ, torch.backends.cpu.get_cpu_capability())
    print(numpy._core._multiarray_umath.__cpu_features__["AVX512_SKX"])

main()
"""


portable = pytest.mark.skipif(not kernels.is_portable_here(), reason="this is no x86-64 processor with AVX2")


@portable
def test_training_and_generation_give_the_bits_expected_on_every_processor(tmp_path: Path) -> None:
    environment = {**os.environ, **kernels.PORTABLE, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.support.portable_bits", str(tmp_path)]
    assert subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE).stdout.decode() == (
        f"{EXPECTED}\n"
    )


@portable
@pytest.mark.parametrize("begun", ["native", "portable"])
@pytest.mark.parametrize("kind", ["native", "portable"])
def test_a_stage_uses_the_kernels_set_in_its_params_and_keeps_its_process_id(
    tmp_path: Path, kind: str, begun: str
) -> None:
    """``begun``: the kernels of the run that started it; an experiment may set others."""
    copy_code(tmp_path)
    text = (ROOT / "profiles/default.yaml").read_text()
    (tmp_path / "params.yaml").write_text(text.replace("kernels: native", f"kernels: {kind}"))
    (tmp_path / "stages/probe.py").write_text(PROBE)
    environment = {name: value for name, value in os.environ.items() if name not in kernels.PORTABLE}
    environment |= kernels.environment(begun)
    with subprocess.Popen(
        [sys.executable, "-m", "stages.probe", "x"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    ) as stage:
        assert stage.stdout is not None
        said = stage.stdout.read().split()
    assert stage.returncode == 0
    assert said[:3] == [str(stage.pid), "x", str(kind == "portable")]
    if kind == "portable":
        assert said[3:] == ["AVX2", "False"]


def test_a_processor_without_avx2_is_refused_for_portable_kernels_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text("flags\t: fpu sse2 avx\n")
    monkeypatch.setattr(kernels, "CPU", tmp_path / "cpuinfo")
    kernels.check("native")
    with refused_with(r"run\.kernels: portable needs an x86-64 processor with AVX2.*; set native"):
        kernels.check("portable")
    monkeypatch.setattr(kernels, "CPU", tmp_path / "none")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")  # a Mac
    with refused_with(r"run\.kernels: portable needs an x86-64 processor with AVX2.*; set native"):
        kernels.check("portable")
