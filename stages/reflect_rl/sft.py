"""reflect_rl-sft@<name>, reflect_rl-control-finetune@<control>: a reflection model or a policy learns from the sets."""

from selfimprove.core.chat import ChatFormat
from selfimprove.core.records import Example, read_jsonl
from selfimprove.methods.reflect_rl.convert import shortened
from selfimprove.methods.reflect_rl.params import ReflectRLParams
from selfimprove.methods.reflect_rl.start import mark_environment
from selfimprove.pipeline.finetuning import tokens_of, train_and_publish
from selfimprove.pipeline.stage import Stage, stage


@stage("reflect_rl-sft", "reflect_rl", ReflectRLParams, heavy=True)
def main(stage: Stage[ReflectRLParams]) -> None:
    reflect_rl, name = stage.params, stage.item
    start, budget = "models/base/reflect_rl", None
    if name in reflect_rl.controls:
        control = reflect_rl.controls[name]
        start, data, cfg = f"models/reflect_rl/{control.init}", control.data, control.finetune
        # What the run that it is compared with read: every token that was trained on or played.
        budget = tokens_of(stage, "reflect_rl", control.match)
    else:
        sft = stage.pick(reflect_rl.sft)
        data, cfg = sft.data, sft.finetune
    model = stage.input(start)
    examples = read_jsonl(stage.input(f"data/reflect_rl/base/train/{data}.jsonl"), Example)
    acts_in = reflect_rl.env.spelling()
    stage.narrow((cfg, budget, acts_in))

    fitting = shortened(examples, ChatFormat.load(model), cfg.max_length)
    cut = sum(short is not whole for short, whole in zip(fitting, examples, strict=True))
    mark_environment(train_and_publish(stage, "reflect_rl", model, fitting, cfg, budget=budget, shortened=cut), acts_in)


if __name__ == "__main__":
    main()
