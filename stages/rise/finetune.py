"""rise-finetune@<iteration>, rise-sft (``base``) and rise-control-finetune@<control>: train on what convert wrote."""

from typing import Literal

from selfimprove.core.records import Example, read_jsonl
from selfimprove.methods.rise.objective import unweighted
from selfimprove.methods.rise.params import RiseParams
from selfimprove.methods.rise.prompts import opening
from selfimprove.pipeline.finetuning import lineage_tokens, tokens_of, train_and_publish
from selfimprove.pipeline.stage import Stage, stage


@stage("rise-finetune", "rise", RiseParams, heavy=True)
def main(stage: Stage[RiseParams]) -> None:
    rise, name = stage.params, stage.item
    ancestors, budget = 0, None
    normalise: Literal["none", "batch"] = "none"
    if name == "base":
        cfg, start, data = rise.sft, "models/base/rise", "data/rise/base/train/examples.jsonl"
    elif name in rise.controls:
        control = rise.controls[name]
        cfg, start = control.finetune, "models/rise/base"
        budget = tokens_of(stage, "rise", control.match)
        data = {
            "demonstrations": "data/rise/base/train/examples.jsonl",
            "single_turn": f"data/rise/{control.match}/train/single_turn.jsonl",
            "unweighted": f"data/rise/{control.match}/train/collected.jsonl",
        }[control.data]
    else:
        iteration = stage.pick(rise.iterations)
        cfg, start = iteration.finetune, f"models/rise/{iteration.init_from}"
        data, normalise = f"data/rise/{name}/train/examples.jsonl", iteration.convert.weight_normalization
        ancestors = lineage_tokens(stage, "rise", rise.iterations, name)
    model, examples = stage.input(start), read_jsonl(stage.input(data), Example)
    if name in rise.controls and rise.controls[name].data == "unweighted":
        examples = unweighted(examples)
    stage.narrow((cfg, normalise, budget, rise.env.few_shot))

    train_and_publish(
        stage, "rise", model, examples, cfg,
        ancestors=ancestors, budget=budget, normalise=normalise, pinned=len(opening("", rise.env.few_shot)),
    )  # fmt: skip


if __name__ == "__main__":
    main()
