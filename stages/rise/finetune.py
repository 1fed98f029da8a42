"""rise-finetune@<iteration>, rise-sft (``base``) and rise-control-finetune@<control>: train on what convert wrote."""

import json
from typing import Literal

from selfimprove.methods.rise.convert import unweighted
from selfimprove.methods.rise.params import RiseParams
from selfimprove.methods.rise.prompts import opening
from selfimprove.pipeline.publish import write_json
from selfimprove.pipeline.stage import Stage, stage
from selfimprove.pipeline.tables import write_csv
from selfimprove.records import Example, read_jsonl
from selfimprove.training.launch import finetune


@stage("rise-finetune", "rise", RiseParams, heavy=True)
def main(stage: Stage[RiseParams]) -> None:
    rise, name = stage.params, stage.item
    lineage_tokens, budget = 0, None
    normalise: Literal["none", "batch"] = "none"
    if name == "base":
        cfg, start, data = rise.sft, "models/base", "data/rise/base/train/examples.jsonl"
    elif name in rise.controls:
        control = rise.controls[name]
        cfg, start = control.finetune, "models/rise/base"
        budget = json.loads(stage.input(f"results/rise/{control.match}/train.json").read_text())["lineage_tokens"]
        data = {
            "demonstrations": "data/rise/base/train/examples.jsonl",
            "single_turn": f"data/rise/{control.match}/train/single_turn.jsonl",
            "unweighted": f"data/rise/{control.match}/train/collected.jsonl",
        }[control.data]
    else:
        iteration = stage.pick(rise.iterations)
        cfg, start = iteration.finetune, f"models/rise/{iteration.init_from}"
        data, normalise = f"data/rise/{name}/train/examples.jsonl", iteration.convert.weight_normalization
        if iteration.init != "base":
            parent = stage.input(f"results/rise/{iteration.init}/train.json")
            lineage_tokens = json.loads(parent.read_text())["lineage_tokens"]
    model, examples = stage.input(start), read_jsonl(stage.input(data), Example)
    if name in rise.controls and rise.controls[name].data == "unweighted":
        examples = unweighted(examples)
    stage.narrow((cfg, normalise, budget, rise.env.few_shot))

    with stage.progress(0) as progress:
        report = finetune(
            model,
            examples,
            stage.output(f"models/rise/{name}"),
            cfg,
            scratch=stage.scratch,
            seed=stage.run.seed,
            threads=stage.run.threads,
            weight_normalization=normalise,
            max_tokens=budget,
            pinned=len(opening("", rise.env.few_shot)),
            progress=progress.reach,
        )
    stage.timing |= {"work_seconds": report.timing.seconds, "tokens_per_second": report.timing.tokens_per_second}
    figures = report.model_dump(mode="json", exclude={"timing", "loss"})
    # What the controls match: the tokens that this iteration and its ancestors read, the base's own left out.
    figures["lineage_tokens"] = 0 if name == "base" else lineage_tokens + report.real_tokens
    write_json(stage.output(f"results/rise/{name}/train.json"), figures)
    write_csv(stage.output(f"results/rise/{name}/loss.csv"), [{"step": s, "loss": x} for s, x in report.loss])


if __name__ == "__main__":
    main()
