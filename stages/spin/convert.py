"""spin-convert@<iteration>: pairs experts with the opponent's episodes, plus the previous iteration's pairs."""

from selfimprove.core.errors import UserError
from selfimprove.core.publish import write_json
from selfimprove.core.records import Pair, read_jsonl, write_jsonl
from selfimprove.envs.qa.experts import Expert
from selfimprove.methods.spin.pairs import mixed, outcome_pairs, spin_pairs
from selfimprove.methods.spin.params import SpinParams
from selfimprove.methods.spin.play import SpinEpisode
from selfimprove.methods.spin.told_apart import told_apart
from selfimprove.pipeline.stage import Stage, stage


@stage("spin-convert", "spin", SpinParams)
def main(stage: Stage[SpinParams]) -> None:
    iteration, name = stage.pick(stage.params.iterations), stage.item
    cfg = iteration.convert
    experts = read_jsonl(stage.input("data/spin/experts.jsonl"), Expert)
    episodes = read_jsonl(stage.input(f"data/spin/{name}/episodes.jsonl"), SpinEpisode)
    previous = read_jsonl(stage.input(f"data/spin/{iteration.init}/train") / "own.jsonl", Pair, may_be_empty=True)
    stage.narrow((cfg, iteration.init))

    own, audit = spin_pairs(experts, episodes, cfg, name)
    pairs = mixed(own, previous, cfg.mix)
    outcome = outcome_pairs(episodes, name)
    if not pairs:
        raise UserError(
            f"no pairs to train on: of {audit.episodes} episodes {audit.blocked} were blocked, {audit.silent} silent "
            f"and {audit.identical} identical to the expert's; play more questions, or set drop_identical: false."
        )

    folder = stage.output(f"data/spin/{name}/train")
    folder.mkdir()
    write_jsonl(folder / "pairs.jsonl", pairs)
    write_jsonl(folder / "own.jsonl", own)  # for the next iteration's window
    write_jsonl(folder / "outcome.jsonl", outcome)
    counts = {**audit.model_dump(mode="json"), "previous": len(previous), "pairs": len(pairs), "outcome": len(outcome)}
    write_json(stage.output(f"results/spin/{name}/convert.json"), {**counts, "told_apart": told_apart(own)})


if __name__ == "__main__":
    main()
