"""Shared by the finetune stages of all methods: inputs and token budgets, training, and publishing."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from selfimprove.core.publish import write_json
from selfimprove.core.records import Example, read_number
from selfimprove.core.tables import write_csv
from selfimprove.methods.rows import NONE
from selfimprove.pipeline.stage import Stage
from selfimprove.training.config import FinetuneParams
from selfimprove.training.launch import finetune


class Given(NamedTuple):
    """Inputs of a row's training. ``ancestors``: training tokens of the rows it continues from, excluding the base's
    own; ``budget``: maximum number of training tokens of a control (None: no limit)."""

    model: Path
    data: Path
    ancestors: int
    budget: int | None


def given(stage: Stage[Any], method: str, row: Any) -> Given:
    """Declare and return the inputs that a ``methods.rows.TrainedRow`` names."""
    return Given(
        model=stage.input(f"models/{method}/{row.init}"),
        data=stage.input(f"data/{method}/{row.source}/train/{row.data}.jsonl"),
        ancestors=lineage_tokens(stage, method, row.init),
        budget=budget_of(stage, method, row.match),
    )


def lineage_tokens(stage: Stage[Any], method: str, name: str) -> int:
    """Training tokens of a row and its ancestors, excluding the base's own (declares the input)."""
    return int(read_number(stage.input(f"results/{method}/{name}/train.json"), "lineage_tokens"))


def budget_of(stage: Stage[Any], method: str, match: str) -> int | None:
    """A control's token budget: that of ``match`` and its ancestors; None for a row that matches none."""
    return None if match == NONE else lineage_tokens(stage, method, match)


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
    """Train ``model`` and publish the result, its metrics and its loss curve under the stage's item.

    Args:
        ancestors: training tokens of the rows that this one continues from.
        budget: number of tokens after which training stops, whatever ``epochs`` is.
        pinned: number of messages at the start of every dialogue that are never dropped.
        shortened: number of examples whose prompt has already been shortened.

    Returns:
        The temporary folder of the new model until the stage ends.
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
            cluster=stage.run.cluster,
        )
    stage.timing |= {"work_seconds": report.timing.seconds, "tokens_per_second": report.timing.tokens_per_second}
    metrics = report.model_dump(mode="json", exclude={"timing", "loss"})
    metrics["counters"]["truncated"] += shortened
    # Controls match this number: training tokens of this row and its ancestors, excluding the base's own.
    metrics["lineage_tokens"] = 0 if name == "base" else ancestors + report.real_tokens
    write_json(stage.output(f"results/{method}/{name}/train.json"), metrics)
    write_csv(stage.output(f"results/{method}/{name}/loss.csv"), [{"step": s, "loss": x} for s, x in report.loss])
    return out
