"""CUDA graphs: the kernels of a pass are recorded once for each shape and then launched together.

With a small model, launching hundreds of kernels one by one takes longer than computing them. A replayed pass runs the
same kernels on the same memory, so its inputs are copied into the tensors of the recording.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from selfimprove.engines.cpu.forward import Forward
from selfimprove.engines.cpu.slots import Rows

WARM_UP = 2
"""Passes before a recording: libraries allocate their workspaces and choose kernels in the first ones."""

Call = Callable[..., torch.Tensor | None]


@dataclass
class _Recording:
    """A graph, the tensors that it reads (first the places to write to), and its result, overwritten by each replay."""

    graph: torch.cuda.CUDAGraph
    inputs: list[torch.Tensor]
    result: torch.Tensor | None


class Graphs:
    """Implements ``Forward`` on a GPU for a model whose weights stay in place; a trainer may change their values.

    A model that cannot be recorded (for example, a mixture of experts, which reads its routing on the host) runs as
    usual.
    """

    def __init__(self, forward: Forward) -> None:
        self._forward = forward
        self._recordings: dict[tuple[object, ...], _Recording] = {}
        self._pool = torch.cuda.graph_pool_handle()
        self.recordable = True

    def read(
        self, rows: Rows, ids: torch.Tensor, at: torch.Tensor, seen: torch.Tensor, last: torch.Tensor | None = None
    ) -> torch.Tensor | None:
        """See ``Forward.read``."""
        return self._run(self._forward.read, rows, ids, at, seen, *(() if last is None else (last,)))

    def step(self, rows: Rows, ids: torch.Tensor, at: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """See ``Forward.step``."""
        logits = self._run(self._forward.step, rows, ids, at, seen)
        assert logits is not None
        return logits

    def _run(self, call: Call, rows: Rows, *inputs: torch.Tensor) -> torch.Tensor | None:
        if not self.recordable:
            return call(rows, *inputs)
        key = (call.__name__, rows.width, *(one.shape for one in inputs))
        if key not in self._recordings:
            stream = torch.cuda.current_stream()
            try:
                self._recordings[key] = self._record(call, rows, inputs)
            except torch.OutOfMemoryError:
                raise
            except RuntimeError:
                torch.cuda.set_stream(stream)  # a recording that fails leaves torch on its own stream
                torch.cuda.synchronize()
                self.recordable = False
                return call(rows, *inputs)
        recording = self._recordings[key]
        for held, given in zip(recording.inputs, (rows.places, *inputs), strict=True):
            held.copy_(given)
        recording.graph.replay()
        return recording.result

    def _record(self, call: Call, rows: Rows, inputs: tuple[torch.Tensor, ...]) -> _Recording:
        """Record a pass. It also runs, on the given inputs, which a replay repeats with the same result."""
        aimed, held = rows.places, [one.clone() for one in (rows.places, *inputs)]
        rows.places = held[0]
        try:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARM_UP):
                    call(rows, *held[1:])
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
                result = call(rows, *held[1:])
        finally:
            rows.places = aimed
        return _Recording(graph, held, result)
