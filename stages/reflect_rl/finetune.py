"""reflect_rl-finetune@<model>: trains a reflection model, a policy or a control on one of the supervised sets."""

from selfimprove.core.chat import ChatFormat
from selfimprove.core.records import Example, read_jsonl
from selfimprove.methods.reflect_rl.convert import shortened
from selfimprove.methods.reflect_rl.params import ReflectRLParams
from selfimprove.methods.reflect_rl.start import mark_environment
from selfimprove.pipeline.finetuning import budget_of, train_and_publish
from selfimprove.pipeline.stage import Stage, stage


@stage("reflect_rl-finetune", "reflect_rl", ReflectRLParams)
def main(stage: Stage[ReflectRLParams]) -> None:
    cfg = stage.pick(stage.params.models)
    model = stage.input(f"models/reflect_rl/{cfg.init}")
    examples = read_jsonl(stage.input(f"data/reflect_rl/base/train/{cfg.data}.jsonl"), Example)
    # A control's budget is every token that the run it is compared with trained on or played.
    budget, acts_in = budget_of(stage, "reflect_rl", cfg.match), stage.params.env.spelling()
    stage.narrow((cfg.train, budget, acts_in))

    fitting = shortened(examples, ChatFormat.load(model), cfg.train.max_length)
    cut = sum(short is not whole for short, whole in zip(fitting, examples, strict=True))
    made = train_and_publish(stage, "reflect_rl", model, fitting, cfg.train, budget=budget, shortened=cut)
    mark_environment(made, acts_in)


if __name__ == "__main__":
    main()
