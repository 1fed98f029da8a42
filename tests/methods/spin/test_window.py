"""The pairs that an iteration trains on, as its stage writes them (docs/spin.md, S2)."""

import json
import shutil
from pathlib import Path

from selfimprove.core.records import Pair, read_jsonl, write_jsonl
from tests.pipeline.workbench import Workbench


def test_an_iterations_window_has_its_own_pairs_and_those_of_the_iteration_before_but_no_older_ones(
    spin_bench: Workbench, tmp_path: Path
) -> None:
    folder = spin_bench.copy(tmp_path / "folder")
    before, now = folder / "data/spin/iter0", folder / "data/spin/iter1"
    previous = read_jsonl(before / "train/own.jsonl", Pair)
    assert [pair.source for pair in previous] == ["iter0"] * 6
    older = previous[0].model_copy(update={"id": "older", "source": "older"})
    write_jsonl(before / "train/pairs.jsonl", [*previous, older])  # as if there had been an iteration before it
    now.mkdir()
    shutil.copyfile(before / "episodes.jsonl", now / "episodes.jsonl")
    spin_bench.done(folder, "spin.convert", "iter1")
    own = read_jsonl(now / "train/own.jsonl", Pair)
    assert [pair.source for pair in own] == ["iter1"] * 6
    window = read_jsonl(now / "train/pairs.jsonl", Pair)
    assert sorted(pair.id for pair in window) == sorted(pair.id for pair in [*own, *previous])
    counts = json.loads((folder / "results/spin/iter1/convert.json").read_text())
    assert (counts["kept"], counts["previous"], counts["pairs"]) == (6, 6, 12)
