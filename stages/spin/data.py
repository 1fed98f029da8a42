"""spin-data: panels, experts and paragraphs of SPIN, and what the warm start learns: expert trajectories."""

import os
from pathlib import Path

from selfimprove.methods.spin.params import SpinParams
from selfimprove.methods.spin.prompts import few_shot_text
from selfimprove.methods.spin.tasks import PANELS, examples, gather, panel_hash, texts
from selfimprove.pipeline.publish import write_json
from selfimprove.pipeline.stage import Stage, stage
from selfimprove.records import write_jsonl, write_rows


@stage("spin-data", "spin", SpinParams)
def main(stage: Stage[SpinParams]) -> None:
    tasks, prompt = stage.params.tasks, stage.params.prompt
    mirror = os.environ.get("DATA_MIRROR")
    stage.input("data/sources.yaml")
    other = tasks.other.folder if tasks.other else None
    stage.own_files(tasks.expert_file, tasks.file, other, prompt.few_shot)
    stage.narrow((tasks, prompt, stage.params.tools))

    few_shot = few_shot_text(prompt.few_shot, tasks.source)
    made = gather(
        tasks, stage.params.tools, seed=stage.run.seed, download=stage.scratch / "download",
        mirror=Path(mirror) if mirror else None,
    )  # fmt: skip
    warm = examples(made.experts, prompt.format, few_shot=few_shot, prefix=prompt.question_prefix)

    folder = stage.output("data/spin/tasks")
    folder.mkdir()
    for name in PANELS:
        write_jsonl(folder / f"{name}.jsonl", made.panels[name])
    hashes = {name: {"n": len(made.panels[name]), "hash": panel_hash(made.panels[name])} for name in PANELS}
    write_json(folder / "panels.json", hashes)
    write_jsonl(stage.output("data/spin/corpus.jsonl"), made.paragraphs)
    write_jsonl(stage.output("data/spin/experts.jsonl"), made.experts)
    write_rows(stage.output("data/spin/texts.jsonl"), texts(warm, prompt.format))
    base = stage.output("data/spin/base/train")
    base.mkdir()
    write_jsonl(base / "examples.jsonl", warm)
    write_jsonl(base / "own.jsonl", [])  # no generation before the first: the window starts empty
    write_json(stage.output("results/spin/base/audit.json"), made.audit.model_dump(mode="json"))


if __name__ == "__main__":
    main()
