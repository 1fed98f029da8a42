"""rise-finetune@<row>: trains a row on demonstrations or on the output of convert."""

from selfimprove.core.records import Example, read_jsonl
from selfimprove.methods.rise.objective import unweighted
from selfimprove.methods.rise.params import RiseParams
from selfimprove.methods.rise.prompts import opening
from selfimprove.pipeline.finetuning import given, train_and_publish
from selfimprove.pipeline.stage import Stage, stage


@stage("rise-finetune", "rise", RiseParams)
def main(stage: Stage[RiseParams]) -> None:
    row, few_shot = stage.pick(stage.params.rows), stage.params.env.few_shot
    start = given(stage, "rise", row)
    examples = read_jsonl(start.data, Example)
    stage.narrow((row.train, row.weights, start.budget, few_shot))

    train_and_publish(
        stage, "rise", start.model, unweighted(examples) if row.weights == "equal" else examples, row.train,
        ancestors=start.ancestors, budget=start.budget, normalise="batch" if row.weights == "batch" else "none",
        pinned=len(opening("", few_shot)),
    )  # fmt: skip


if __name__ == "__main__":
    main()
