"""``make check`` on GPUs: lacking GPUs, packages, compilers and headers are reported before a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from selfimprove.methods.agent_r.params import AgentRParams
from selfimprove.methods.rise.params import RiseParams
from selfimprove.pipeline import check
from selfimprove.pipeline.plan.hardware import GPUS
from tests.support.profiles import profile


def test_missing_gpus_and_packages_are_reported() -> None:
    values = profile("rise-llama2-7b")
    faults = list(check.machine_faults(RiseParams.model_validate(values["rise"]), {"OPENAI_API_KEY": "sk-x"}))
    assert any("is cuda, but this machine has no NVIDIA GPU" in fault for fault in faults)
    assert any("engines.student: engine vllm: the package vllm is not installed here" in fault for fault in faults)


def test_a_run_on_a_gpu_is_refused_without_a_c_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "GPU_FILES", (str(tmp_path),))
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    values = profile("rise-llama2-7b")
    faults = list(check.machine_faults(RiseParams.model_validate(values["rise"]), {"OPENAI_API_KEY": "sk-x"}))
    assert any("Triton's kernels need a C compiler" in fault for fault in faults)
    assert not any("no NVIDIA GPU" in fault for fault in faults)


def test_a_machine_with_too_few_gpus_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    section = AgentRParams.model_validate(profile("agent-r-llama3.1-8b")["agent_r"])

    def faults(gpus: int) -> list[str]:
        monkeypatch.setattr(check, "visible_gpus", lambda: (gpus, 80e9, GPUS["H100"]))
        return [fault for fault in check.machine_faults(section, {}) if "this machine has only" in fault]

    (said,) = faults(1)  # the base is not trained, so that a stage would notice only after the first search
    assert said.endswith(".train.launcher.processes is 8, but this machine has only 1 GPU; lower it.")
    assert not said.startswith("rows.base.")
    assert faults(8) == []
    values = profile("rise-llama2-7b")["rise"]
    values["engines"]["student"]["tensor_parallel"] = 2
    (said,) = check.gpu_faults(RiseParams.model_validate(values), 5)
    assert said.startswith("engines.student: engine vllm: tensor_parallel 2 does not divide the number of visible GPUs")


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"tf32": True}, "tf32: only GPUs support it; remove the line or set device: cuda."),
        (
            {"attention": "flash_attention_2"},
            "attention: flash_attention_2 needs device: cuda and dtype: bfloat16; set these, or sdpa.",
        ),
        ({"tf32": True, "epochs": 0.0}, None),  # trains nothing
    ],
)
def test_settings_for_gpus_are_refused_on_a_cpu_before_the_run(settings: dict, said: str | None) -> None:
    values = profile("default")["rise"]
    values["rows"]["iter1"].setdefault("train", {}).update(settings)
    faults = list(check.machine_faults(RiseParams.model_validate(values), {}))
    found = [fault for fault in faults if "tf32" in fault or "flash_attention_2" in fault]
    assert found == ([f"rows.iter1.train.{said}"] if said else [])
    for_gpus = RiseParams.model_validate(profile("rise-llama2-7b")["rise"])  # with both
    assert not list(check.precision_faults(for_gpus))


@pytest.mark.parametrize(
    ("compiler", "header", "lacking"),
    [
        (True, True, None),
        (False, True, "a C compiler"),
        (True, False, "Python's headers ("),
        (False, False, "a C compiler and Python's headers ("),
    ],
)
def test_a_missing_compiler_or_missing_python_headers_for_triton_are_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: bool, header: bool, lacking: str | None
) -> None:
    if compiler:
        (tmp_path / "gcc").touch(mode=0o755)
    if header:
        (tmp_path / "Python.h").touch()
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    faults = list(check.compiler_faults(tmp_path))
    if lacking is None:
        assert faults == []
    else:
        (said,) = faults
        assert f"Triton's kernels need {lacking}" in said
