"""Shared by the finetune stages of all methods: the tokens that count, the call, and publishing."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from selfimprove.core.publish import write_json
from selfimprove.core.records import Example, read_object
from selfimprove.core.tables import write_csv
from selfimprove.methods.rows import NONE
from selfimprove.pipeline.stage import Stage
from selfimprove.training.config import FinetuneParams
from selfimprove.training.launch import finetune


class Given(NamedTuple):
    """What a row is trained from. ``ancestors``: training tokens of the rows that it goes on from, the base's own left
    out; ``budget``: the tokens that a control may read."""

    model: Path
    data: Path
    ancestors: int
    budget: int | None


def given(stage: Stage[Any], method: str, row: Any) -> Given:
    """The inputs that the keys of a ``methods.rows.TrainedRow`` name (declares them)."""
    return Given(
        model=stage.input(f"models/{method}/{row.init}"),
        data=stage.input(f"data/{method}/{row.source}/train/{row.data}.jsonl"),
        ancestors=lineage_tokens(stage, method, row.init),
        budget=budget_of(stage, method, row.match),
    )


def lineage_tokens(stage: Stage[Any], method: str, name: str) -> int:
    """Training tokens that a row and its ancestors read, the base's own left out (declares the input)."""
    return int(read_object(stage.input(f"results/{method}/{name}/train.json"))["lineage_tokens"])


def budget_of(stage: Stage[Any], method: str, match: str) -> int | None:
    """What a control may read: the tokens of ``match`` and its ancestors; of others that matches none, no bound."""
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
    """Train ``model`` and publish the new one with its metrics and its loss curve, under the stage's item.

    Args:
        ancestors: training tokens of the rows that this one goes on from.
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
            cluster=stage.run.cluster,
        )
    stage.timing |= {"work_seconds": report.timing.seconds, "tokens_per_second": report.timing.tokens_per_second}
    metrics = report.model_dump(mode="json", exclude={"timing", "loss"})
    metrics["counters"]["truncated"] += shortened
    # What the controls match: the tokens that this row and its ancestors read, the base's own left out.
    metrics["lineage_tokens"] = 0 if name == "base" else ancestors + report.real_tokens
    write_json(stage.output(f"results/{method}/{name}/train.json"), metrics)
    write_csv(stage.output(f"results/{method}/{name}/loss.csv"), [{"step": s, "loss": x} for s, x in report.loss])
    return out
