"""Training on pairs as a stage: the call, and what is published; ``pipeline.finetuning`` does the same for examples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from selfimprove.core.publish import write_json
from selfimprove.core.records import Pair
from selfimprove.core.tables import write_csv
from selfimprove.methods.spin.pair_config import PairParams
from selfimprove.methods.spin.training import finetune_pairs
from selfimprove.pipeline.stage import Stage


def train_pairs_and_publish(
    stage: Stage[Any], method: str, model: Path, pairs: Sequence[Pair], cfg: PairParams, *, ancestors: int = 0
) -> None:
    """Train ``model`` against itself as it enters; publish the new one, its metrics and their curves.

    The opponent is the model that training starts from, so the caller gives one model only.

    Args:
        ancestors: training tokens of the iterations before this one.

    Raises:
        UserError: as ``finetune_pairs``.
    """
    name = stage.item
    with stage.progress(0) as progress:
        report = finetune_pairs(
            model,
            model,
            pairs,
            stage.output(f"models/{method}/{stage.place}"),
            cfg,
            scratch=stage.scratch,
            seed=stage.run.seed,
            threads=stage.run.threads,
            progress=progress.reach,
        )
    stage.timing |= {"work_seconds": report.timing.seconds, "tokens_per_second": report.timing.tokens_per_second}
    metrics = report.model_dump(mode="json", exclude={"timing", "curve"})
    metrics["lineage_tokens"] = ancestors + report.real_tokens
    write_json(stage.output(f"results/{method}/{name}/train.json"), metrics)
    write_csv(stage.output(f"results/{method}/{name}/loss.csv"), report.curve)
