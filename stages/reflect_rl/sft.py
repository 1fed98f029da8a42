"""reflect_rl-sft@<name>, reflect_rl-control-finetune@<control>: a reflection model or a policy learns from the sets."""

import json

from selfimprove.chat import ChatFormat
from selfimprove.methods.reflect_rl.convert import shortened
from selfimprove.methods.reflect_rl.params import ReflectRLParams
from selfimprove.pipeline.finetuning import train_and_publish
from selfimprove.pipeline.stage import Stage, stage
from selfimprove.records import Example, read_jsonl


@stage("reflect_rl-sft", "reflect_rl", ReflectRLParams, heavy=True)
def main(stage: Stage[ReflectRLParams]) -> None:
    reflect_rl, name = stage.params, stage.item
    budget = None
    if name in reflect_rl.controls:
        control = reflect_rl.controls[name]
        init, data, cfg = control.init, control.data, control.finetune
        # What the run that it is compared with read: every token that was trained on or played.
        budget = int(
            json.loads(stage.input(f"results/reflect_rl/{control.match}/train.json").read_text())["lineage_tokens"]
        )
    else:
        sft = stage.pick(reflect_rl.sft)
        init, data, cfg = sft.init, sft.data, sft.finetune
    model = stage.input("models/base/reflect_rl" if init == "base" else f"models/reflect_rl/{init}")
    examples = read_jsonl(stage.input(f"data/reflect_rl/base/train/{data}.jsonl"), Example)
    stage.narrow((cfg, budget))

    examples = shortened(examples, ChatFormat.load(model), cfg.max_length)
    train_and_publish(stage, "reflect_rl", model, examples, cfg, budget=budget)


if __name__ == "__main__":
    main()
