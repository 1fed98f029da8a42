"""Agent-R's stages, killed and started again: the same bytes, nothing finished done twice.

As ``test_kill.py`` does for RISE: search asks the model for a node's children, conversion asks it to judge a node, and
each of these answers is one journal entry; training saves every other step.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from selfimprove.core.records import read_jsonl
from selfimprove.methods.agent_r.tree import Tree
from tests.pipeline.workbench import Place, Unbroken, Workbench, kept_by, killed, published

pytestmark = pytest.mark.timeout(600)

SEARCH, JUDGE, SFT = ("agent_r.generate", "iter1"), ("agent_r.convert", "iter2"), ("agent_r.finetune", "base")
SAVE_STEPS = 2
STEPS = 6


@pytest.fixture(scope="module")
def unbroken(agent_bench: Workbench, tmp_path_factory: pytest.TempPathFactory) -> dict[Place, Unbroken]:
    """Each of the three stages, run whole."""
    runs = {}
    for stage in (SEARCH, JUDGE, SFT):
        folder = agent_bench.copy(tmp_path_factory.mktemp("unbroken") / "bench")
        ran = agent_bench.forks.run(folder, *stage)
        assert ran.code == 0, ran.stderr
        runs[stage] = Unbroken(published(folder), ran)
    for stage in (SEARCH, JUDGE):
        assert runs[stage].count("computed") == runs[stage].count("journaled") >= 6
    assert runs[SFT].count("step") == STEPS
    return runs


def test_the_search_and_the_judge_that_are_killed_here_have_trees_and_pairs(
    agent_bench: Workbench, tmp_path: Path, unbroken: dict[Place, Unbroken]
) -> None:
    trees = tmp_path / "trees.jsonl"
    trees.write_bytes(unbroken[SEARCH].files["data/agent_r/iter1/trees.jsonl"])
    assert len(read_jsonl(trees, Tree)) == 3
    assert sum(bool(node.children) for tree in read_jsonl(trees, Tree) for node in tree.nodes) == unbroken[
        SEARCH
    ].count("computed")
    stats = json.loads(unbroken[JUDGE].files["results/agent_r/iter2/convert.json"])
    assert stats["kept_pairs"] >= 2
    assert stats["judged"] == unbroken[JUDGE].count("computed")


@pytest.mark.parametrize("stage", [SEARCH, JUDGE], ids=["search", "judge"])
@pytest.mark.parametrize(("back", "when"), [(-1, "torn"), (-2, "after"), (1, "before"), (0, "torn"), (0, "after")])
def test_agent_r_12_killed_at_an_answer_resumes_and_ends_with_the_same_bytes(
    agent_bench: Workbench,
    tmp_path: Path,
    unbroken: dict[Place, Unbroken],
    stage: Place,
    back: int,
    when: str,
) -> None:
    """``back``: the entry at which it dies, from the last one; negative: from the first."""
    whole = unbroken[stage]
    count = -back if back < 0 else whole.count("journaled") - back
    folder = agent_bench.copy(tmp_path / "bench")
    before = published(folder)
    first = killed(agent_bench, folder, stage, kill={"at": "journal", "count": count, "when": when})
    assert published(folder) == before  # nothing is published by half
    kept = kept_by(folder, stage)
    assert kept == (count if when == "after" else count - 1)
    assert first.log.count("computed") - kept <= 1  # at most one answer is lost
    again = agent_bench.forks.run(folder, *stage)
    assert (again.code, published(folder)) == (0, whole.files)
    assert again.log.count("journaled") == again.log.count("computed") == whole.count("computed") - kept


@pytest.mark.parametrize("stage", [SEARCH, JUDGE], ids=["search", "judge"])
@pytest.mark.parametrize("back", [0, 1, 2])
def test_agent_r_12_killed_while_publishing_asks_nothing_again(
    agent_bench: Workbench,
    tmp_path: Path,
    unbroken: dict[Place, Unbroken],
    stage: Place,
    back: int,
) -> None:
    whole = unbroken[stage]
    folder = agent_bench.copy(tmp_path / "bench")
    killed(
        agent_bench, folder, stage, kill={"at": "replace", "count": whole.count("replaced") - back, "when": "before"}
    )
    assert {path for path, data in published(folder).items() if whole.files.get(path) != data} == set()
    again = agent_bench.forks.run(folder, *stage)
    assert (again.code, published(folder)) == (0, whole.files)
    assert "computed" not in again.log


@pytest.mark.parametrize(
    ("kill", "steps"),
    [
        ({"at": "step", "count": 1, "when": "before"}, STEPS),
        ({"at": "step", "count": 3, "when": "before"}, STEPS - 2),  # step 3 is lost, step 2 was saved
        ({"at": "step", "count": 5, "when": "after"}, 2),
    ],
)
def test_agent_r_30_finetune_killed_redoes_at_most_one_save_interval_and_ends_with_the_same_bytes(
    agent_bench: Workbench,
    tmp_path: Path,
    unbroken: dict[Place, Unbroken],
    kill: dict[str, object],
    steps: int,
) -> None:
    folder = agent_bench.copy(tmp_path / "bench")
    for path in ("models/agent_r/base/model.safetensors", "results/agent_r/base/train.json"):
        (folder / path).unlink()
    first = killed(agent_bench, folder, SFT, kill=kill)
    assert "results/agent_r/base/train.json" not in published(folder)
    again = agent_bench.forks.run(folder, *SFT)
    assert (again.code, published(folder)) == (0, unbroken[SFT].files)
    assert again.log.count("step") == steps
    assert first.log.count("step") + 1 + steps <= STEPS + SAVE_STEPS


def test_agent_r_12_shards_of_a_search_and_then_the_stage_give_the_same_bytes_and_ask_the_model_once(
    agent_bench: Workbench, tmp_path: Path, unbroken: dict[Place, Unbroken]
) -> None:
    whole = unbroken[SEARCH]
    folder = agent_bench.copy(tmp_path / "bench")
    before = published(folder)
    asked = 0
    for index in (0, 1):
        ran = agent_bench.forks.run(folder, *SEARCH, env={"SELFIMPROVE_SHARD": f"{index}/2"})
        assert ran.code == 0, ran.stderr
        assert ran.log.count("computed") > 0
        asked += ran.log.count("computed")
    assert published(folder) == before  # a shard has no outputs
    assert asked == whole.count("computed")
    merged = agent_bench.forks.run(folder, *SEARCH)
    assert (merged.code, merged.log.count("computed"), published(folder)) == (0, 0, whole.files)


def test_agent_r_12_a_killed_shard_of_a_search_is_finished_by_the_stage(
    agent_bench: Workbench, tmp_path: Path, unbroken: dict[Place, Unbroken]
) -> None:
    whole = unbroken[SEARCH]
    folder, shard = agent_bench.copy(tmp_path / "bench"), {"SELFIMPROVE_SHARD": "0/2"}
    killed(agent_bench, folder, SEARCH, env=shard, kill={"at": "journal", "count": 3, "when": "torn"})
    assert kept_by(folder, SEARCH) == 2
    merged = agent_bench.forks.run(folder, *SEARCH)
    assert (merged.code, merged.log.count("computed")) == (0, whole.count("computed") - 2)
    assert published(folder) == whole.files
