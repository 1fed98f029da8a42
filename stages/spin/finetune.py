"""spin-sft (``base``), spin-finetune@<iteration>, spin-control-finetune@<control>: SFT on experts, or on pairs."""

from selfimprove.core.publish import write_json
from selfimprove.core.records import Example, Pair, read_jsonl
from selfimprove.core.tables import write_csv
from selfimprove.methods.spin.params import OutcomeControl, SftControl, SpinParams
from selfimprove.methods.spin.prompts import check_template
from selfimprove.methods.spin.training import finetune_pairs
from selfimprove.pipeline.finetuning import lineage_tokens, tokens_of, train_and_publish
from selfimprove.pipeline.stage import Stage, stage

NEVER_CUT = 1 << 20
"""Messages that are never dropped from an over-long episode: all of them; it is left out whole, and counted."""


@stage("spin-finetune", "spin", SpinParams, heavy=True)
def main(stage: Stage[SpinParams]) -> None:
    control = stage.params.controls.get(stage.item)
    if isinstance(control, OutcomeControl):
        on_pairs(stage, control)
    elif control is not None or stage.item == "base":
        on_experts(stage, control)
    else:
        on_pairs(stage, None)


def on_experts(stage: Stage[SpinParams], control: SftControl | None) -> None:
    """The warm start, or more of it."""
    cfg = control.finetune if control else stage.params.sft
    model = stage.input("models/spin/base" if control else "models/base/spin")
    examples = read_jsonl(stage.input("data/spin/base/train") / "examples.jsonl", Example)
    check_template(model, stage.params.prompt.format)
    budget = tokens_of(stage, "spin", control.match) if control else None
    stage.narrow((cfg, budget))

    train_and_publish(stage, "spin", model, examples, cfg, budget=budget, pinned=NEVER_CUT)


def on_pairs(stage: Stage[SpinParams], control: OutcomeControl | None) -> None:
    """Self-play against the model that training starts from, or DPO on outcomes with it as the reference."""
    spin, name = stage.params, stage.item
    if control is not None:
        start, file, ancestors = "base", f"{control.source}/train/outcome", 0
        cfg = control.finetune.model_copy(update={"max_train_tokens": tokens_of(stage, "spin", control.match)})
    else:
        row = stage.pick(spin.iterations)
        start, file, cfg = row.init_from, f"{name}/train/pairs", row.finetune
        ancestors = lineage_tokens(stage, "spin", spin.iterations, name)
    model = stage.input(f"models/spin/{start}")
    check_template(model, spin.prompt.format)
    pairs = read_jsonl(stage.input(f"data/spin/{file}.jsonl"), Pair)
    stage.narrow(cfg)

    with stage.progress(0) as progress:
        report = finetune_pairs(
            model,
            model,
            pairs,
            stage.output(f"models/spin/{name}"),
            cfg,
            scratch=stage.scratch,
            seed=stage.run.seed,
            threads=stage.run.threads,
            progress=progress.reach,
        )
    stage.timing |= {"work_seconds": report.timing.seconds, "tokens_per_second": report.timing.tokens_per_second}
    metrics = report.model_dump(mode="json", exclude={"timing", "curve"})
    metrics["lineage_tokens"] = ancestors + report.real_tokens
    write_json(stage.output(f"results/spin/{name}/train.json"), metrics)
    write_csv(stage.output(f"results/spin/{name}/loss.csv"), report.curve)


if __name__ == "__main__":
    main()
