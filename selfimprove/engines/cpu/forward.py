"""The interface between the decoder and a model's forward pass."""

from typing import Protocol

import torch

from selfimprove.engines.cpu.slots import Rows


class Forward(Protocol):
    """Two paths through a model. Both write keys and values to the positions set by ``Rows.aim``.

    ids and at (the positions) are int64 [rows, tokens]; seen is bool [rows, tokens, width]: what each may attend to.
    """

    def read(
        self, rows: Rows, ids: torch.Tensor, at: torch.Tensor, seen: torch.Tensor, last: torch.Tensor | None = None
    ) -> torch.Tensor | None:
        """Prefill keys and values; with ``last`` [rows], also return the logits [rows, vocabulary] after that token."""

    def step(self, rows: Rows, ids: torch.Tensor, at: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """Decode one token per row; returns the next token's logits [rows, vocabulary]."""
