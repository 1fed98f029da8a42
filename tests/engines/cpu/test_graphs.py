"""Recordings that fail, with torch's streams replaced by names."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from selfimprove.engines.cpu.graphs import Graphs


def test_after_a_recording_that_fails_the_model_runs_on_the_previous_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    current = ["default"]
    ran: list[str] = []

    class Model:
        def step(self, rows: Any, ids: torch.Tensor, at: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
            ran.append(current[0])
            return ids

    def failing(self: Graphs, call: object, rows: object, inputs: object) -> None:
        current[0] = "capture"  # torch.cuda.graph does not leave its stream if the capture cannot end
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: (0, 1))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: current[0])
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: current.__setitem__(0, stream))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(Graphs, "_record", failing)
    graphs = Graphs(Model())  # type: ignore[arg-type]
    rows: Any = type("Rows", (), {"width": 4})()
    ids = torch.zeros(2, 1)
    for _ in range(2):
        assert graphs.step(rows, ids, ids, ids) is ids
    assert ran == ["default", "default"]
    assert not graphs.recordable
