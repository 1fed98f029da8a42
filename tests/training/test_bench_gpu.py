"""The GPU benchmark measures every kind of row beside the plan's estimate, and a row that fails hinders no other."""

from __future__ import annotations

import json

import pytest

from bench import gpu
from bench.gpu import Generated, Trained

pytestmark = pytest.mark.slow

SMALL = (32, 64, 2, 4, 2, 600)


def test_every_row_is_measured_or_reports_its_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = (
        Trained("135M", 256, 4),
        Generated("135M", 0, 8),  # an impossible number of slots
        Generated("135M", 4, 8),
        Trained("1.5B", 256, 4, attention="segments", row_tokens=128, lora=True, checkpointing=True),
    )
    settings = {
        "DEVICE": "cpu", "ROWS": rows, "SHORTEST": 20, "LONGEST": 100, "STEPS": 3, "WARM": 1, "NEW": 8, "WORDS": 20,
        "MODELS": {name: (kind, SMALL) for name, (kind, _) in gpu.MODELS.items()},
        "_memory": lambda *_, **__: {"tensors": 0.1},
    }  # fmt: skip
    for name, value in settings.items():
        monkeypatch.setattr(gpu, name, value)
    result = gpu.measure(threads=1)
    assert not result["valid"]
    wrong, right = result["generation"]
    assert "slots" in wrong["error"]
    measured = [*result["training"], right]
    for row in measured:
        assert "error" not in row, row
        assert min(row["tokens_per_second"], row["planned"], row["ms_per_step"]) > 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith('{"row"')]
    assert [row["row"] for row in printed] == list(map(str, rows))
    assert json.loads(json.dumps(result)) == result
    gpu.show(result)

    monkeypatch.setattr(gpu, "SECONDS", -1.0)
    late = gpu.measure(threads=1)
    assert all("skipped" in row["error"] for row in late["training"] + late["generation"])
