"""When attention ``segments`` uses torch's FlashAttention, as far as this can be told without a GPU."""

from __future__ import annotations

import pytest
import torch

from selfimprove.training import segments


@pytest.mark.parametrize(
    ("query", "value", "dtype", "expected"),
    [
        (64, 64, torch.bfloat16, True),
        (256, 256, torch.float16, True),
        (64, 64, torch.float32, False),
        (60, 60, torch.bfloat16, False),
        (512, 512, torch.bfloat16, False),
        (192, 128, torch.bfloat16, False),
    ],
)
def test_flash_attention_gets_only_what_it_supports(
    query: int, value: int, dtype: torch.dtype, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert segments._fused(torch.zeros(1, 2, 3, query), torch.zeros(1, 2, 3, value), dtype) is expected


def test_flash_attention_needs_an_ampere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert not segments._fused(torch.zeros(1, 2, 3, 64), torch.zeros(1, 2, 3, 64), torch.bfloat16)
