"""Memory that does not suffice: what is refused before it is allocated, and which errors of a GPU are reported."""

from __future__ import annotations

import pytest

from selfimprove.core.memory import check_memory, gpu_memory
from tests.support.sentences import refused_with


def test_exactly_the_total_memory_suffices() -> None:
    check_memory(3 * 2**30, "a model", total=3 * 2**30)
    with refused_with(r"^a model would take 4 GiB of memory, but only 3\.$"):
        check_memory(4 * 2**30, "a model", total=3 * 2**30)


@pytest.mark.parametrize(
    ("text", "more"),
    [
        ("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has 79 GiB.", r" \(2\.50 GiB more were needed\)"),
        ("CUDA error: out of memory", ""),
        ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", ""),
    ],
)
def test_exhausted_memory_of_a_gpu_is_one_sentence(text: str, more: str) -> None:
    with refused_with(rf"^train: the GPU's memory is exhausted{more}; lower x\.$"), gpu_memory("train", "lower x"):
        raise RuntimeError(text)


def test_other_errors_pass_unchanged() -> None:
    with pytest.raises(RuntimeError, match="device-side assert triggered"), gpu_memory("train", "lower x"):
        raise RuntimeError("device-side assert triggered")
