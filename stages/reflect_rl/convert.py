"""reflect_rl-convert: converts the trajectories to the five supervised sets and the tokenizer's training texts."""

from selfimprove.core.publish import write_json
from selfimprove.core.records import read_jsonl, write_jsonl, write_rows
from selfimprove.methods.reflect_rl.convert import convert, metrics, texts
from selfimprove.methods.reflect_rl.generate import TeacherTrajectory
from selfimprove.methods.reflect_rl.params import ReflectRLParams
from selfimprove.methods.reflect_rl.prompts import MARKERS
from selfimprove.methods.splits import load_split
from selfimprove.pipeline.stage import Stage, stage


@stage("reflect_rl-convert", "reflect_rl", ReflectRLParams)
def main(stage: Stage[ReflectRLParams]) -> None:
    trajectories = read_jsonl(stage.input("data/reflect_rl/trajectories.jsonl"), TeacherTrajectory)
    markers, instruction = MARKERS[stage.params.prompt.markers], stage.params.env.instruction()
    train = load_split(stage.input("data/reflect_rl/tasks") / "train.jsonl", trajectories[0].env)
    demonstrated = train[: stage.params.tasks.demonstrations]
    stage.narrow((instruction, stage.params.prompt, demonstrated))

    sets = convert(trajectories, instruction, markers, demonstrated)

    folder = stage.output("data/reflect_rl/base/train")
    folder.mkdir()
    for name, examples in sets.items():
        write_jsonl(folder / f"{name}.jsonl", examples)
    write_rows(stage.output("data/reflect_rl/texts.jsonl"), texts(sets, trajectories, instruction, markers))
    write_json(stage.output("results/reflect_rl/base/convert.json"), metrics(trajectories, sets))


if __name__ == "__main__":
    main()
