"""FlashAttention through the package ``kernels`` itself; LOCAL_KERNELS specifies a kernel for CPUs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from selfimprove.training import flash
from selfimprove.training.config import FinetuneParams

pytestmark = pytest.mark.backend

FLASH = FinetuneParams(attention="flash_attention_2", device="cuda", dtype="bfloat16")
METADATA = {"id": "flash_attn2_cpu_0", "name": "flash-attn2", "version": 3, "license": "BSD-3-Clause"}


def test_a_kernel_in_a_local_folder_needs_no_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    build = tmp_path / "flash-attn2/build/torch-cpu"
    build.mkdir(parents=True)
    (build / "metadata.json").write_text(json.dumps({**METADATA, "python-depends": [], "backend": {"type": "cpu"}}))
    shutil.copy(Path(__file__).resolve().parents[1] / "support/flash_kernel.py", build / "__init__.py")
    monkeypatch.setenv("LOCAL_KERNELS", f"kernels-community/flash-attn2={tmp_path / 'flash-attn2'}")
    assert flash.settle(FLASH) == FLASH
    assert capsys.readouterr().err == ""


def test_segments_is_used_without_a_network_and_without_a_local_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert flash.settle(FLASH).attention == "segments"
    assert "cannot run here (Version 3 of 'kernels-community/flash-attn2' is not available" in capsys.readouterr().err
