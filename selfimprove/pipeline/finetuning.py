"""Shared by the finetune stages of all methods: the tokens that count, the call, and publishing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from selfimprove.core.publish import write_json
from selfimprove.core.records import Example
from selfimprove.core.tables import write_csv
from selfimprove.methods.lineage import Descendant
from selfimprove.pipeline.stage import Stage
from selfimprove.training.config import FinetuneParams
from selfimprove.training.launch import finetune


def lineage_tokens(stage: Stage[Any], method: str, iterations: Mapping[str, Descendant], name: str) -> int:
    """Training tokens that the ancestors of iteration ``name`` read, the base's own left out (declares the input)."""
    init = iterations[name].init
    return 0 if init == "base" else tokens_of(stage, method, init)


def tokens_of(stage: Stage[Any], method: str, row: str) -> int:
    """Training tokens that an iteration and its ancestors read, which a control may read too (declares the input)."""
    return int(json.loads(stage.input(f"results/{method}/{row}/train.json").read_text())["lineage_tokens"])


def train_and_publish(
    stage: Stage[Any],
    method: str,
    model: Path,
    examples: Sequence[Example],
    cfg: FinetuneParams,
    *,
    ancestors: int = 0,
    budget: int | None = None,
    normalise: Literal["none", "batch"] = "none",
    pinned: int | None = None,
    shortened: int = 0,
) -> Path:
    """Train ``model`` and publish the new one with its metrics and its loss curve, under the stage's item.

    Args:
        ancestors: training tokens of the iterations before this one.
        budget: stop after so many tokens; ``epochs`` is then ignored.
        pinned: messages that open every dialogue and are never dropped.
        shortened: examples that have lost a part of their prompt before.

    Returns:
        Where the new model lies until the stage ends.
    """
    name = stage.item
    out = stage.output(f"models/{method}/{name}")
    with stage.progress(0) as progress:
        report = finetune(
            model,
            examples,
            out,
            cfg,
            scratch=stage.scratch,
            seed=stage.run.seed,
            threads=stage.run.threads,
            weight_normalization=normalise,
            max_train_tokens=budget,
            pinned=pinned,
            progress=progress.reach,
        )
    stage.timing |= {"work_seconds": report.timing.seconds, "tokens_per_second": report.timing.tokens_per_second}
    metrics = report.model_dump(mode="json", exclude={"timing", "loss"})
    metrics["counters"]["truncated"] += shortened
    # What the controls match: the tokens that this iteration and its ancestors read, the base's own left out.
    metrics["lineage_tokens"] = 0 if name == "base" else ancestors + report.real_tokens
    write_json(stage.output(f"results/{method}/{name}/train.json"), metrics)
    write_csv(stage.output(f"results/{method}/{name}/loss.csv"), [{"step": s, "loss": x} for s, x in report.loss])
    return out
