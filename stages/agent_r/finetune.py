"""agent_r-finetune@<row>: trains a row on demonstrations or on the output of convert."""

from selfimprove.core.records import Example, read_jsonl
from selfimprove.methods.agent_r.params import AgentRParams
from selfimprove.methods.agent_r.prompts import OPENING
from selfimprove.pipeline.finetuning import given, train_and_publish
from selfimprove.pipeline.stage import Stage, stage


@stage("agent_r-finetune", "agent_r", AgentRParams)
def main(stage: Stage[AgentRParams]) -> None:
    row = stage.pick(stage.params.rows)
    start = given(stage, "agent_r", row)
    # Without a warm start (epochs: 0) there are no demonstrations, and the model is used unchanged.
    examples = read_jsonl(start.data, Example, may_be_empty=row.train.epochs == 0)
    stage.narrow((row.train, start.budget))

    train_and_publish(
        stage, "agent_r", start.model, examples, row.train,
        ancestors=start.ancestors, budget=start.budget, pinned=OPENING,
    )  # fmt: skip


if __name__ == "__main__":
    main()
