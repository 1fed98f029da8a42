"""What XTuner's runner is given of ours: the data, token for token, and a hook that counts steps and seals checkpoints.

Lives in XTuner's environment. XTuner could tokenise conversations by itself (``process_hf_dataset``, rows with
``output_with_loss``), but not exactly: it tokenises again what a model has generated, reads the text of a special
token as that token, knows templates of prefix and suffix only, cuts the end, which is the part that is trained on, off
a conversation that is too long, and packs by cutting conversations at the row's border. So it is
handed the ids and labels of ``training.encode``, one conversation a micro-batch, in the order of ``training.packing``.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from mmengine.dist import is_main_process
from mmengine.hooks import Hook
from torch.utils.data import Dataset

from selfimprove.core.seeds import key_bits
from selfimprove.training.checkpoints import folders, is_whole, seal
from selfimprove.training.processes import load_encoded, tell

LOSSES = "losses.json"
IGNORED = -100
"""Label of a token that is not learnt."""

PADDING = {"input_ids": [0, 0], "labels": [IGNORED, IGNORED]}
"""A micro-batch without a conversation: its loss is 0, and so is its gradient."""


class MicroBatches(Dataset):
    """The run's micro-batches in order; of several processes each reads every n-th.

    ``order.npz`` holds for each one the index of its example (-1: padding) and the number that the sum of its
    tokens' losses is divided by. The quotients' mean over a step's micro-batches is the step's loss.
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
        learnt = zip(example.ids, example.token_weights, strict=True)
        return {
            "input_ids": example.ids,
            "labels": [token if weight else IGNORED for token, weight in learnt],
            "divisor": self._divisors[place],
        }


def collate(items: list[dict[str, Any]]) -> dict[str, Any]:
    """One conversation as XTuner's model takes it: ids and labels [1, tokens], without any padding.

    The divisor travels as ``num_items_in_batch``, by which transformers divides the summed loss.
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
    """After each optimiser step: note its loss, tell the stage, and seal the checkpoint that was just written.

    A sealed checkpoint holds the losses up to it. Before each micro-batch the generator is seeded by its number, so
    that a resumed run draws the same dropout as an unbroken one.
    """

    def __init__(self, accumulation: int, keep: int, seed: int) -> None:
        self._accumulation, self._keep, self._seed = accumulation, keep, seed
        self._losses: list[float] = []
        self._pending: list[torch.Tensor] = []

    def before_train(self, runner: Any) -> None:
        """Take up the losses of the checkpoint that the run goes on from."""
        if runner.iter:
            self._losses = json.loads((_checkpoint(runner, runner.iter) / LOSSES).read_text(encoding="utf-8"))

    def before_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None) -> None:
        """Name this micro-batch's noise."""
        rank = dist.get_rank() if dist.is_initialized() else 0
        torch.manual_seed(key_bits(self._seed, "xtuner", batch_idx, rank) % 2**32)

    def before_save_checkpoint(self, runner: Any, checkpoint: dict[str, Any]) -> None:
        """Only tensors and plain values, so that no code can hide in a checkpoint (``weights_only``).

        Smoothed log values, which nothing reads, are left out; NumPy's numbers become Python's.
        """
        if (hub := checkpoint.get("message_hub")) is not None:
            hub["log_scalars"] = {}
        for key, value in checkpoint.items():
            checkpoint[key] = _plain(value)

    def after_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None, outputs: Any = None) -> None:
        """Close the step with its last micro-batch."""
        self._pending.append(outputs["loss"].detach().float())
        if len(self._pending) < self._accumulation:
            return
        loss = torch.stack(self._pending).mean()
        self._pending = []
        several = dist.is_initialized() and dist.get_world_size() > 1
        if several:
            dist.all_reduce(loss)
            loss /= dist.get_world_size()
            dist.barrier()  # every process has written its part of the checkpoint
        if is_main_process():
            self._losses.append(float(loss))
            self._seal(runner, batch_idx + 1)
            last = self._losses[-1]
            tell(len(self._losses), runner.max_iters // self._accumulation, f"loss {last:.4f}", {"loss": last})
        if several:
            dist.barrier()

    def _seal(self, runner: Any, iteration: int) -> None:
        folder = _checkpoint(runner, iteration)
        if not folder.is_dir():
            return
        (folder / LOSSES).write_text(json.dumps(self._losses), encoding="utf-8")
        seal(folder)
        whole = [one for one in folders(folder.parent) if is_whole(one)]
        for old in whole[: -self._keep]:
            shutil.rmtree(old)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return type(value)((key, _plain(inner)) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return type(value)([_plain(inner) for inner in value])
    return value.item() if isinstance(value, np.generic) else value


def _checkpoint(runner: Any, iteration: int) -> Path:
    return Path(runner.work_dir) / f"checkpoint-{iteration}"
