"""spin-data: SPIN's splits, experts and paragraphs, and the data of the warm start: expert trajectories."""

import sys

from selfimprove.core.publish import write_json
from selfimprove.core.records import write_jsonl, write_rows
from selfimprove.core.sources import mirror_folder
from selfimprove.methods.spin.params import QuestionsParams, SpinParams
from selfimprove.methods.spin.player import material
from selfimprove.methods.spin.prompts import few_shot_text
from selfimprove.methods.spin.tasks import ACTED, SCAFFOLD, SPLITS, bring_snippets, examples, texts
from selfimprove.methods.splits import sizes
from selfimprove.pipeline.stage import Stage, stage


@stage("spin-data", "spin", SpinParams)
def main(stage: Stage[SpinParams]) -> None:
    tasks, prompt = stage.params.tasks, stage.params.prompt
    stage.input("data/sources.yaml")
    stage.narrow((tasks, prompt, stage.params.env, stage.params.tools, stage.params.play_tools))

    task, prefix = stage.params.asked("train")
    few_shot = few_shot_text(prompt.few_shot, task)
    download, mirror = stage.scratch / "download", mirror_folder()
    made = material(stage.params, seed=stage.run.seed, download=download, mirror=mirror)
    if made.audit.dropped:
        counts = ", ".join(f"{reason}: {count}" for reason, count in made.audit.dropped.items())
        left_out = made.audit.read - made.audit.kept
        print(f"{stage.name}: {left_out} of {made.audit.read} experts are left out ({counts}).", file=sys.stderr)
    warm = examples(made.experts, prompt.format, few_shot=few_shot, prefix=prefix)

    folder = stage.output("data/spin/tasks")
    folder.mkdir()
    for name in SPLITS:
        write_jsonl(folder / f"{name}.jsonl", made.splits[name])
    write_json(folder / "splits.json", sizes({name: [one.id for one in made.splits[name]] for name in SPLITS}))
    bring_snippets([stage.params.tools, stage.params.play_tools], folder, download=download, mirror=mirror)
    write_jsonl(stage.output("data/spin/corpus.jsonl"), made.paragraphs)
    write_jsonl(stage.output("data/spin/experts.jsonl"), made.experts)
    asked = isinstance(stage.params.env, QuestionsParams)
    write_rows(stage.output("data/spin/texts.jsonl"), texts(warm, prompt.format, SCAFFOLD if asked else ACTED))
    base = stage.output("data/spin/base/train")
    base.mkdir()
    write_jsonl(base / "examples.jsonl", warm)
    write_jsonl(base / "own.jsonl", [])  # nothing precedes the first iteration: the window starts empty
    write_json(stage.output("results/spin/base/audit.json"), made.audit.model_dump(mode="json"))


if __name__ == "__main__":
    main()
