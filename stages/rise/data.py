"""rise-data: RISE's problems as frozen splits, and the demonstrations of the first SFT."""

from pathlib import Path

from selfimprove.core.publish import write_json
from selfimprove.core.records import write_jsonl, write_rows
from selfimprove.core.sources import mirror_folder
from selfimprove.envs.interface import to_row
from selfimprove.methods.rise.params import RiseParams
from selfimprove.methods.rise.tasks import build_splits, demonstrate, texts
from selfimprove.methods.splits import sizes
from selfimprove.pipeline.stage import Stage, stage


@stage("rise-data", "rise", RiseParams)
def main(stage: Stage[RiseParams]) -> None:
    tasks, env = stage.params.tasks, stage.params.env.make()
    stage.input("data/sources.yaml")
    for file in (tasks.files or {}).values():
        if Path(file).exists():
            stage.input(file)
    stage.narrow((tasks, stage.params.env))

    splits = build_splits(tasks, env, seed=stage.run.seed, download=stage.scratch / "download", mirror=mirror_folder())

    folder = stage.output("data/rise/tasks")
    folder.mkdir()
    for name in ("train", "dev", "test"):
        write_rows(folder / f"{name}.jsonl", [to_row(problem, env) for problem in splits[name]])
    write_json(folder / "splits.json", sizes({name: [one.id for one in problems] for name, problems in splits.items()}))
    write_rows(stage.output("data/rise/texts.jsonl"), texts(splits["demonstrations"] or splits["train"], env))
    base = stage.output("data/rise/base/train")
    base.mkdir()
    demonstrations = demonstrate(splits["demonstrations"], env, few_shot=stage.params.env.few_shot)
    write_jsonl(base / "examples.jsonl", demonstrations)
    # The base has collected nothing, so accumulation starts empty.
    for name in ("collected", "single_turn"):
        write_jsonl(base / f"{name}.jsonl", [])


if __name__ == "__main__":
    main()
