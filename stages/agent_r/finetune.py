"""agent_r-finetune@<iteration>, agent_r-sft (``base``), agent_r-control-finetune@<control>: train on conversations."""

from selfimprove.core.records import Example, read_jsonl
from selfimprove.methods.agent_r.params import AgentRParams
from selfimprove.methods.agent_r.prompts import OPENING
from selfimprove.pipeline.finetuning import lineage_tokens, tokens_of, train_and_publish
from selfimprove.pipeline.stage import Stage, stage


@stage("agent_r-finetune", "agent_r", AgentRParams, heavy=True)
def main(stage: Stage[AgentRParams]) -> None:
    agent_r, name = stage.params, stage.item
    ancestors, budget = 0, None
    if name == "base":
        cfg, start, data = agent_r.sft, "models/base/agent_r", "data/agent_r/base/train/examples.jsonl"
    elif name in agent_r.controls:
        control = agent_r.controls[name]
        cfg, start = control.finetune, "models/agent_r/base"
        budget = tokens_of(stage, "agent_r", control.match)
        data = {
            "demonstrations": "data/agent_r/base/train/examples.jsonl",
            "good": f"data/agent_r/{control.match}/train/good.jsonl",
            "direct": f"data/agent_r/{control.match}/train/direct.jsonl",
        }[control.data]
    else:
        iteration = stage.pick(agent_r.iterations)
        cfg, start = iteration.finetune, f"models/agent_r/{iteration.init_from}"
        data = f"data/agent_r/{name}/train/examples.jsonl"
        ancestors = lineage_tokens(stage, "agent_r", agent_r.iterations, name)
    # Without a warm start (epochs 0) there are no demonstrations: the model is taken as it is.
    model, examples = stage.input(start), read_jsonl(stage.input(data), Example, may_be_empty=cfg.epochs == 0)
    stage.narrow((cfg, budget))

    train_and_publish(stage, "agent_r", model, examples, cfg, ancestors=ancestors, budget=budget, pinned=OPENING)


if __name__ == "__main__":
    main()
