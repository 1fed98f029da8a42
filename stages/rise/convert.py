"""rise-convert@<iteration>: converts episodes to reward-weighted examples."""

from selfimprove.core.chat import ChatFormat
from selfimprove.core.publish import write_json
from selfimprove.core.records import Episode, Example, read_jsonl, write_jsonl
from selfimprove.core.tables import write_csv
from selfimprove.methods.rise.convert import convert, single_turn
from selfimprove.methods.rise.params import RiseParams
from selfimprove.pipeline.stage import Stage, stage


@stage("rise-convert", "rise", RiseParams)
def main(stage: Stage[RiseParams]) -> None:
    iteration, row = stage.pick(stage.params.iterations), stage.pick(stage.params.rows)
    cfg, length = iteration.convert, row.train.max_length
    episodes = read_jsonl(stage.input(f"data/rise/{stage.item}/episodes.jsonl"), Episode)
    parent = stage.input(f"data/rise/{iteration.init}/train")
    chat = ChatFormat.load(stage.input("models/rise/start"))
    stage.narrow((cfg, length))

    earlier = read_jsonl(parent / "collected.jsonl", Example, may_be_empty=True)
    singles = read_jsonl(parent / "single_turn.jsonl", Example, may_be_empty=True)
    more = earlier if cfg.accumulate else []
    used = convert(episodes, cfg, seed=stage.run.seed, chat=chat, max_length=length, earlier=more)
    own = convert(episodes, cfg, seed=stage.run.seed, may_be_empty=True) if more else used

    folder = stage.output(f"data/rise/{stage.item}/train")
    folder.mkdir()
    write_jsonl(folder / "examples.jsonl", used.examples)
    # Everything collected up to this iteration, for successors that accumulate and for the controls.
    write_jsonl(folder / "collected.jsonl", [*earlier, *own.examples])
    answers = single_turn(episodes, seed=stage.run.seed, remove_duplication=cfg.remove_duplication)
    write_jsonl(folder / "single_turn.jsonl", [*singles, *answers])
    write_json(stage.output(f"results/rise/{stage.item}/convert.json"), used.stats)
    write_csv(stage.output(f"results/rise/{stage.item}/rewards.csv"), own.histogram)


if __name__ == "__main__":
    main()
