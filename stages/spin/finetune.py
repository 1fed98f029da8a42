"""spin-finetune@<row>: SFT on experts, or training on pairs (self-play, DPO on outcomes)."""

from selfimprove.core.publish import write_json
from selfimprove.core.records import Example, Pair, read_jsonl
from selfimprove.core.tables import write_csv
from selfimprove.methods.spin.params import ExpertRow, PairRow, SpinParams
from selfimprove.methods.spin.prompts import check_template
from selfimprove.methods.spin.training import finetune_pairs
from selfimprove.pipeline.finetuning import Given, given, train_and_publish
from selfimprove.pipeline.stage import Stage, stage

NEVER_CUT = 1 << 20
"""Number of messages never dropped from an over-long episode: all, so that such an episode is omitted and counted."""


@stage("spin-finetune", "spin", SpinParams)
def main(stage: Stage[SpinParams]) -> None:
    row = stage.pick(stage.params.rows)
    start = given(stage, "spin", row)
    check_template(start.model, stage.params.prompt.format)
    stage.narrow((row.train, start.budget))
    if isinstance(row, ExpertRow):
        on_experts(stage, row, start)
    else:
        on_pairs(stage, row, start)


def on_experts(stage: Stage[SpinParams], row: ExpertRow, start: Given) -> None:
    """Train the warm start, or a continuation of it."""
    examples = read_jsonl(start.data, Example)
    train_and_publish(
        stage, "spin", start.model, examples, row.train,
        ancestors=start.ancestors, budget=start.budget, pinned=NEVER_CUT,
    )  # fmt: skip


def on_pairs(stage: Stage[SpinParams], row: PairRow, start: Given) -> None:
    """Train by self-play against the model that training starts from, or by DPO on outcomes with that reference."""
    name, pairs = stage.item, read_jsonl(start.data, Pair)
    cfg = row.train if start.budget is None else row.train.model_copy(update={"max_train_tokens": start.budget})

    with stage.progress(0) as progress:
        report = finetune_pairs(
            start.model,
            start.model,
            pairs,
            stage.output(f"models/spin/{name}"),
            cfg,
            scratch=stage.scratch,
            seed=stage.run.seed,
            threads=stage.run.threads,
            progress=progress.reach,
            cluster=stage.run.cluster,
        )
    stage.timing |= {"work_seconds": report.timing.seconds, "tokens_per_second": report.timing.tokens_per_second}
    metrics = report.model_dump(mode="json", exclude={"timing", "curve"})
    metrics["lineage_tokens"] = start.ancestors + report.real_tokens
    write_json(stage.output(f"results/spin/{name}/train.json"), metrics)
    write_csv(stage.output(f"results/spin/{name}/loss.csv"), report.curve)


if __name__ == "__main__":
    main()
