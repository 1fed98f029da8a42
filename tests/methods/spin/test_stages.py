"""Params that reach SPIN's stages (docs/spin.md, S6 and S18)."""

import json
from pathlib import Path

from selfimprove.core.records import read_rows, write_rows
from selfimprove.core.sources import SOURCES, load_sources, sha256_of
from selfimprove.methods.spin.tasks import SNIPPETS
from tests.pipeline.workbench import Workbench


def test_every_question_is_played_runs_times_with_the_tools_of_self_play(spin_bench: Workbench, tmp_path: Path) -> None:
    change = {
        "spin": {"iterations": {"iter0": {"generate": {"end": 2, "runs": 2}}}, "play_tools": {"use": {"find": "local"}}}
    }
    folder = spin_bench.copy(tmp_path / "bench", change)
    spin_bench.done(folder, "spin.generate", "iter0")
    rows = [row for _, row in read_rows(folder / "data/spin/iter0/episodes.jsonl")]
    assert [row.get("run", 0) for row in rows] == [0, 0, 1, 1]
    assert len({row["seed"] for row in rows}) == 4
    told = json.loads((folder / "results/spin/iter0/generate.json").read_text())
    assert "search" not in told["actions"]  # the tool is called find here


def test_experts_that_are_left_out_are_counted_on_the_terminal(spin_bench: Workbench, tmp_path: Path) -> None:
    folder = spin_bench.copy(tmp_path / "bench", {"spin": {"tools": {"setup": "plain"}}})
    ran = spin_bench.forks.run(folder, "spin.data")
    assert ran.code == 0, ran.stderr
    audit = json.loads((folder / "results/spin/base/audit.json").read_text())
    assert audit["read"] > audit["kept"] > 0
    left_out = audit["read"] - audit["kept"]
    said = f"spin-data: {left_out} of {audit['read']} experts are left out (paragraph not found: {left_out}).\n"
    assert said in ran.stderr


def test_snippets_that_only_self_play_replays_are_stored_with_the_tasks(spin_bench: Workbench, tmp_path: Path) -> None:
    """A small file is declared in place of FireAct's snippets."""
    folder = spin_bench.copy(tmp_path / "bench", {"spin": {"play_tools": {"use": {"search": "replay"}}}})
    (declared,) = load_sources(folder / SOURCES)["fireact_snippets"].files
    small = tmp_path / "mirror" / declared.path
    small.parent.mkdir(parents=True)
    write_rows(small, [{"query": "Who wrote it?", "snippet": "Ann wrote it."}])
    text = (folder / SOURCES).read_text(encoding="utf-8")
    (folder / SOURCES).write_text(text.replace(declared.sha256, sha256_of(small)), encoding="utf-8")
    ran = spin_bench.forks.run(folder, "spin.data", env={"DATA_MIRROR": str(tmp_path / "mirror")})
    assert ran.code == 0, ran.stderr
    assert (folder / "data/spin/tasks" / SNIPPETS).read_bytes() == small.read_bytes()
