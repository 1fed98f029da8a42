"""Our parts in XTuner's runner: the data, as token ids, and a hook for steps and checkpoints.

This module runs in XTuner's environment. XTuner can tokenise conversations itself (``process_hf_dataset``, rows with
``output_with_loss``), but not exactly. It re-tokenises generated text, parses the text of a special token as that
token, supports only templates of prefix and suffix, truncates long conversations at the end (the part that is trained
on), and splits conversations at row boundaries when packing. It is therefore given the ids and labels of
``training.encode``, one conversation per micro-batch, in the order of ``training.packing``.
"""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from mmengine.logging import HistoryBuffer
from torch.utils.data import Dataset

from selfimprove.core.errors import UserError
from selfimprove.core.seeds import key_bits
from selfimprove.training.checkpoints import keep_newest, seal
from selfimprove.training.processes import load_encoded, tell
from selfimprove.training.stopping import END, SaveClock

LOSSES = "losses.json"
IGNORED = -100
"""Label of a token that is excluded by the loss mask."""

PADDING = {"input_ids": [0, 0], "labels": [IGNORED, IGNORED]}
"""A micro-batch without a conversation, whose loss and gradient are 0."""


class MicroBatches(Dataset):
    """The run's micro-batches in order, of which each of n processes reads every n-th.

    ``order.npz`` contains the index of each micro-batch's example (-1: padding) and the number that the sum of its
    token losses is divided by. The step's loss is the mean of these quotients over its micro-batches.
    """

    def __init__(self, folder: str) -> None:
        self._examples = load_encoded(Path(folder) / "examples.npz")
        with np.load(Path(folder) / "order.npz", allow_pickle=False) as arrays:
            self._order, self._divisors = arrays["order"].tolist(), arrays["divisors"].tolist()

    def __len__(self) -> int:
        return len(self._order)

    def __getitem__(self, place: int) -> dict[str, Any]:
        index = self._order[place]
        if index < 0:
            return {**PADDING, "divisor": 1.0}
        example = self._examples[index]
        weighted = zip(example.ids, example.token_weights, strict=True)
        return {
            "input_ids": example.ids,
            "labels": [token if weight else IGNORED for token, weight in weighted],
            "divisor": self._divisors[place],
        }


def collate(items: list[dict[str, Any]]) -> dict[str, Any]:
    """One conversation in the input format of XTuner's model: ids and labels [1, tokens], without padding.

    The divisor is passed as ``num_items_in_batch``, by which transformers divides the summed loss.
    """
    [item] = items
    ids = torch.tensor([item["input_ids"]])
    data = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "labels": torch.tensor([item["labels"]]),
        "num_items_in_batch": torch.tensor(item["divisor"], dtype=torch.float32),
    }
    return {"data": data, "data_samples": None}


class StepHook(Hook):
    """After each optimiser step: stop on divergence, record the loss, report progress, write and seal checkpoints.

    Checkpoints are written every ``every`` steps, by the clock, after the last step, and when Ctrl-C or SIGTERM
    requests a stop, which follows. A sealed checkpoint contains the losses up to it. Before each micro-batch the
    generator is seeded by its number, so that a resumed run draws the same dropout as an uninterrupted one.
    """

    def __init__(self, accumulation: int, every: int, keep: int, seed: int, overflows: bool) -> None:
        """``overflows``: a gradient that is not finite is not treated as divergence (dynamic loss scale)."""
        self._accumulation, self._every, self._keep, self._seed = accumulation, every, keep, seed
        self._overflows = overflows
        self._losses: list[float] = []
        self._pending: list[torch.Tensor] = []
        self._clock = SaveClock()

    def before_train(self, runner: Any) -> None:
        """Load the losses from the checkpoint that the run resumes from."""
        if runner.iter:
            self._losses = json.loads((_checkpoint(runner, runner.iter) / LOSSES).read_text(encoding="utf-8"))
        if (engine := _deepspeed(runner)) is not None:
            # mmengine does not call ``before_save_checkpoint`` for DeepSpeed's checkpoints.
            write = engine.checkpoint_engine.save
            engine.checkpoint_engine.save = lambda state, path: write(_plain(state), path)

    def before_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None) -> None:
        """Seed this micro-batch's noise."""
        rank = dist.get_rank() if dist.is_initialized() else 0
        torch.manual_seed(key_bits(self._seed, "xtuner", batch_idx, rank) % 2**32)

    def before_save_checkpoint(self, runner: Any, checkpoint: dict[str, Any]) -> None:
        """Reduce the checkpoint to tensors and plain values, so that it can be loaded with ``weights_only``."""
        for key, value in checkpoint.items():
            checkpoint[key] = _plain(value)

    def after_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        """Complete the step after its last micro-batch (collective call)."""
        self._pending.append(outputs["loss"].detach().float())
        if len(self._pending) < self._accumulation:
            return
        losses = torch.stack(self._pending)
        self._pending = []
        loss = float(_summed(losses.mean())) / _processes()
        step, steps = (batch_idx + 1) // self._accumulation, runner.max_iters // self._accumulation
        self._check_finite(runner, loss, step, steps)
        self._losses.append(loss)
        mine = self._clock.wish(first=is_main_process()) if step < steps else 0
        wish = min(END, int(_summed(losses.new_tensor(float(mine)))))
        if wish or step % self._every == 0 or step == steps:
            with self._clock.saving():
                self._save(runner, batch_idx + 1)
        if is_main_process():
            tell(step, steps, f"loss {loss:.4f}", {"loss": loss})
        if wish == END:
            raise KeyboardInterrupt

    def _check_finite(self, runner: Any, loss: float, step: int, steps: int) -> None:
        """Raise a ``UserError`` if the loss or gradient norm is not finite, before a checkpoint or another step."""
        engine = _deepspeed(runner)
        found = engine.get_global_grad_norm() if engine else runner.message_hub.get_scalar("train/grad_norm").current()
        norm = 0.0 if self._overflows or found is None else float(found)
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise UserError(
                f"step {step} of {steps}: the loss is {loss:.4g} and the gradient norm {norm:.4g}, so training has "
                "diverged; lower train.lr, or the examples' weights."
            )

    def _save(self, runner: Any, iteration: int) -> None:
        folder = _checkpoint(runner, iteration)
        file = folder if _deepspeed(runner) is not None else folder / "state.pth"  # DeepSpeed writes a folder
        runner.save_checkpoint(str(file.parent), file.name, by_epoch=False, meta={"epoch": 0, "iter": iteration})
        _wait_for_everyone()  # every process has written its part
        if is_main_process():
            (folder / LOSSES).write_text(json.dumps(self._losses), encoding="utf-8")
            seal(folder)
            keep_newest(folder.parent, self._keep)
        _wait_for_everyone()


def _deepspeed(runner: Any) -> Any:
    """DeepSpeed's engine, or None if XTuner trains without it."""
    engine = getattr(runner.model, "model", None)
    return engine if hasattr(engine, "get_global_grad_norm") else None


def _processes() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def _summed(value: torch.Tensor) -> torch.Tensor:
    """``value`` summed over the processes."""
    if _processes() > 1:
        dist.all_reduce(value)
    return value


def _wait_for_everyone() -> None:
    if _processes() > 1:
        dist.barrier()


def _plain(value: Any) -> Any:
    """The value reduced to dictionaries, lists, Python's numbers and tensors, without logging and config classes.

    Smoothed log values, which nothing reads, are dropped.
    """
    if isinstance(value, dict):
        kind = OrderedDict if isinstance(value, OrderedDict) else dict
        return kind((key, _plain(inner)) for key, inner in value.items() if not isinstance(inner, HistoryBuffer))
    if isinstance(value, list | tuple):
        return type(value)([_plain(inner) for inner in value])
    return value.item() if isinstance(value, np.generic) else value


def _checkpoint(runner: Any, iteration: int) -> Path:
    return Path(runner.work_dir) / f"checkpoint-{iteration}"
