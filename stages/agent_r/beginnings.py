"""agent_r-beginnings: the bad beginnings from which every row continues, from a file or the base's own failures."""

from pathlib import Path

from selfimprove.core.records import write_jsonl
from selfimprove.methods.agent_r.beginnings import Beginning, bad_beginnings, beginning_of, read_beginnings
from selfimprove.methods.agent_r.params import AgentRParams
from selfimprove.methods.splits import load_split
from selfimprove.pipeline.stage import Stage, stage
from stages.agent_r.evaluate import played


@stage("agent_r-beginnings", "agent_r", AgentRParams)
def main(stage: Stage[AgentRParams]) -> None:
    agent_r, cfg = stage.params, stage.params.evaluate
    model = stage.input("models/agent_r/base")
    split = load_split(stage.input("data/agent_r/tasks") / f"{cfg.split}.jsonl", agent_r.env.world_name)[: cfg.limit]
    stage.narrow((agent_r.env, agent_r.engines["actor"], cfg))

    beginnings: list[Beginning] = []
    if cfg.revision and cfg.beginnings:
        beginnings = read_beginnings(Path(cfg.beginnings), split)
    elif cfg.revision:
        sampled = cfg.model_copy(update={"temperature": 1.0, "top_p": 1.0})
        failed = played(stage, model, [*map(beginning_of, split)], sampled)
        beginnings = bad_beginnings(split, failed, cfg.revision_prefix)
    write_jsonl(stage.output("data/agent_r/beginnings.jsonl"), beginnings[: cfg.revision_tasks])


if __name__ == "__main__":
    main()
