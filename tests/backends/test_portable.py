"""``run.kernels: portable`` on another vendor's processor: an Intel Haswell emulated by QEMU. Takes two minutes.

Needs QEMU 7.2 or later, the first version that emulates AVX2.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from selfimprove.pipeline.kernels import PORTABLE
from tests.support.portable_bits import EXPECTED
from tests.support.repo_copy import ROOT

QEMU = "qemu-x86_64"


def has_qemu() -> bool:
    """Whether a QEMU that emulates AVX2 is installed."""
    if shutil.which(QEMU) is None:
        return False
    said = subprocess.run([QEMU, "--version"], check=True, stdout=subprocess.PIPE, text=True).stdout
    found = re.search(r"version (\d+)\.(\d+)", said)
    return found is not None and (int(found[1]), int(found[2])) >= (7, 2)


pytestmark = [
    pytest.mark.backend,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not has_qemu(), reason="there is no QEMU 7.2 here; on Debian: apt-get install qemu-user"),
]


def test_training_and_generation_are_bit_identical_on_an_intel_processor_without_avx512(tmp_path: Path) -> None:
    environment = {**os.environ, **PORTABLE, "OMP_NUM_THREADS": "1"}
    command = [QEMU, "-cpu", "Haswell", sys.executable, "-m", "tests.support.portable_bits", str(tmp_path)]
    said = subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    assert said == f"{EXPECTED}\n"
