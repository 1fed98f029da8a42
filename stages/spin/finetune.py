"""spin-sft (``base``), spin-finetune@<iteration>, spin-control-finetune@<control>: SFT on experts, or on pairs."""

from selfimprove.core.records import Example, Pair, read_jsonl
from selfimprove.methods.spin.params import OutcomeControl, SftControl, SpinParams
from selfimprove.methods.spin.prompts import check_template
from selfimprove.pipeline.finetuning import budget_of, lineage_tokens, train_and_publish
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
    budget = budget_of(stage, "spin", control.match) if control else None
    stage.narrow((cfg, budget))

    train_and_publish(stage, "spin", model, examples, cfg, budget=budget, pinned=NEVER_CUT)


def on_pairs(stage: Stage[SpinParams], control: OutcomeControl | None) -> None:
    """Self-play against the model that training starts from, or DPO on outcomes with it as the reference."""
    from selfimprove.pipeline.pair_finetuning import train_pairs_and_publish

    spin = stage.params
    if control is not None:
        start, file, ancestors = "base", f"{control.source}/train/outcome", 0
        cfg = control.finetune.model_copy(update={"max_tokens": budget_of(stage, "spin", control.match)})
    else:
        row = stage.pick(spin.iterations)
        start, file, cfg = row.init_from, f"{stage.item}/train/pairs", row.finetune
        ancestors = lineage_tokens(stage, "spin", spin.iterations, stage.item)
    model = stage.input(f"models/spin/{start}")
    check_template(model, spin.prompt.format)
    pairs = read_jsonl(stage.input(f"data/spin/{file}.jsonl"), Pair)
    stage.narrow(cfg)

    train_pairs_and_publish(stage, "spin", model, pairs, cfg, ancestors=ancestors)


if __name__ == "__main__":
    main()
