"""agent_r-data: Agent-R's tasks as frozen splits, and the data of the warm start: demonstrations and judgements."""

from selfimprove.core.publish import write_json
from selfimprove.core.records import write_jsonl, write_rows
from selfimprove.methods.agent_r.judge import judge_examples
from selfimprove.methods.agent_r.params import AgentRParams
from selfimprove.methods.agent_r.prompts import SYSTEM
from selfimprove.methods.agent_r.tasks import build_splits, demonstrate, demonstrate_revision, texts
from selfimprove.methods.splits import sizes, to_rows
from selfimprove.pipeline.stage import Stage, stage


@stage("agent_r-data", "agent_r", AgentRParams)
def main(stage: Stage[AgentRParams]) -> None:
    tasks, env = stage.params.tasks, stage.params.env.make()
    stage.narrow((tasks, stage.params.env))

    splits = build_splits(tasks, env, seed=stage.run.seed)
    layouts = stage.params.env.layouts(tasks.layouts)
    demonstrations = [
        (example := demonstrate(layout, task, tasks.observation_weight)).model_copy(
            update={"id": f"{example.id}_layout{i}"}
        )
        for i, layout in enumerate(layouts)
        for task in splits["demonstrations"]
    ]
    revisions = []
    for i in range(tasks.revision_demonstrations):
        layout, task = layouts[i % len(layouts)], splits["demonstrations"][i % len(splits["demonstrations"])]
        revision = demonstrate_revision(layout, task, stage.run.seed, i)
        revisions += [revision.model_copy(update={"id": f"{revision.id}_{i}"})] if revision else []
    judgements = judge_examples(
        env, splits["demonstrations"], tasks.judge_examples, seed=stage.run.seed, style=tasks.judge_style
    )

    folder = stage.output("data/agent_r/tasks")
    folder.mkdir()
    for name in ("train", "dev", "test"):
        write_rows(folder / f"{name}.jsonl", to_rows(env.name, splits[name]))
    write_json(folder / "splits.json", sizes(splits))
    constants = [{"text": SYSTEM, "fixed": True}, {"text": env.instruction, "fixed": True}]
    examples = [*demonstrations, *revisions, *judgements]
    write_rows(stage.output("data/agent_r/texts.jsonl"), [*constants, *texts(examples)])
    base = stage.output("data/agent_r/base/train")
    base.mkdir()
    write_jsonl(base / "examples.jsonl", examples)
    # The base has collected nothing, so accumulation starts empty.
    for name in ("collected", "good", "direct"):
        write_jsonl(base / f"{name}.jsonl", [])


if __name__ == "__main__":
    main()
