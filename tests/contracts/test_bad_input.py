"""How every method's stages handle bad input: one sentence with a remedy, exit code 2, nothing published or lost.

(Method-specific errors: test_bad_input.py in tests and in tests/methods.)
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pipeline.workbench import Place, Workbench, lines_of

pytestmark = pytest.mark.timeout(600)

BENCHES = {"rise": "rise_bench", "agent_r": "agent_bench", "reflect_rl": "reflect_bench", "spin": "spin_bench"}

EPISODES = "data/rise/iter1/episodes.jsonl"
PROBLEMS = "data/rise/tasks/train.jsonl"
EXAMPLES = "data/rise/base/train/examples.jsonl"
TEXTS = "data/rise/texts.jsonl"
TREES = "data/agent_r/iter2/trees.jsonl"
CRAFTS = "data/agent_r/tasks/train.jsonl"
ACTED = "data/agent_r/base/train/examples.jsonl"
BEGINNINGS = "data/agent_r/beginnings.jsonl"
TAUGHT = "data/reflect_rl/trajectories.jsonl"
PLAYED = "data/spin/iter0/episodes.jsonl"
RISE = {name: (f"rise.{name}", "iter1") for name in ("generate", "convert")} | {"sft": ("rise.finetune", "base")}
AGENT = {name: (f"agent_r.{name}", "iter2") for name in ("generate", "convert")}
AGENT_SFT, AGENT_EVALUATE = ("agent_r.finetune", "base"), ("agent_r.evaluate", "iter1")
REFLECT, SPIN = ("reflect_rl.convert", ""), ("spin.convert", "iter0")
TORN = "not a whole JSON object"


def bench_of(place: Place, request: pytest.FixtureRequest) -> Workbench:
    stage, item = place
    bench = request.getfixturevalue(BENCHES[item if stage == "base" else stage.partition(".")[0]])
    assert isinstance(bench, Workbench)
    return bench


def copied(bench: Workbench, target: Path) -> Path:
    """A copy of the bench, with the model that Agent-R's evaluation of an iteration needs."""
    folder = bench.copy(target)
    if (folder / "models/agent_r/base").exists():
        shutil.copytree(folder / "models/agent_r/base", folder / "models/agent_r/iter1")
    return folder


@pytest.mark.parametrize(
    ("place", "file", "line", "damage", "said"),
    [
        (RISE["convert"], EPISODES, 3, lambda raw: raw[: len(raw) // 2] + b"\n", TORN),
        (RISE["convert"], EPISODES, 6, lambda raw: raw[:-20], TORN),
        (RISE["convert"], EPISODES, 2, lambda raw: b"\xff" + raw, "not UTF-8 (byte 0)"),
        (RISE["convert"], EPISODES, 1, lambda raw: b"[1]\n", "a JSON object was expected"),
        (RISE["convert"], EPISODES, 4, lambda raw: raw.replace(b'"turns"', b'"turn"'), "field 'turn"),
        (RISE["convert"], EPISODES, 5, lambda raw: raw.replace(b'"reward": ', b'"reward": NaN, "r": ', 1), ""),
        (RISE["generate"], PROBLEMS, 5, lambda raw: raw[:-9] + b"\n", TORN),
        (RISE["generate"], PROBLEMS, 4, lambda raw: raw.replace(b"#### ", b"#### about "), "####"),
        (RISE["generate"], PROBLEMS, 7, lambda raw: raw.replace(b"#### ", b"that is "), "####"),
        (RISE["generate"], PROBLEMS, 2, lambda raw: raw.replace(b'"question"', b'"query"'), "'question'"),
        (RISE["sft"], EXAMPLES, 9, lambda raw: raw[1:], TORN),
        (RISE["sft"], EXAMPLES, 1, lambda raw: raw.replace(b'"role": "user"', b'"role": "me"'), "role"),
        (("base", "rise"), TEXTS, 1, lambda raw: b"\xfe\n", "not UTF-8"),
        (AGENT["convert"], TREES, 2, lambda raw: raw[: len(raw) // 2] + b"\n", TORN),
        (AGENT["convert"], TREES, 2, lambda raw: raw.replace(b'"nodes"', b'"node"'), "field 'node"),
        (AGENT["convert"], TREES, 2, lambda raw: b"\xff" + raw, "not UTF-8"),
        (AGENT["generate"], CRAFTS, 2, lambda raw: raw.replace(b"textcraft", b"webshop"), "not a task of textcraft"),
        (AGENT["generate"], CRAFTS, 2, lambda raw: raw[:-5] + b"\n", TORN),
        (AGENT_SFT, ACTED, 2, lambda raw: raw[1:], TORN),
        (AGENT_EVALUATE, BEGINNINGS, 2, lambda raw: raw[:-9], TORN),
        (AGENT_EVALUATE, BEGINNINGS, 2, lambda raw: raw.replace(b'"replies"', b'"reply"'), "field 'replies'"),
        (AGENT_EVALUATE, BEGINNINGS, 2, lambda raw: raw.replace(b'"task_id": ', b'"task_id": "x", "a": '), "task_id"),
        (REFLECT, TAUGHT, 2, lambda raw: raw[:-9] + b"\n", TORN),
        (SPIN, PLAYED, 2, lambda raw: b"\xff" + raw, "not UTF-8"),
    ],
)
def test_a_malformed_line_is_reported_with_its_file_and_line_number(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    place: Place,
    file: str,
    line: int,
    damage: Callable[[bytes], bytes],
    said: str,
) -> None:
    bench = bench_of(place, request)
    folder = copied(bench, tmp_path / "bench")
    if file == BEGINNINGS:
        (folder / file).write_text('{"task_id": 3, "replies": ["Action: inventory"]}\n' * 2)
    lines = lines_of(folder / file)
    lines[line - 1] = damage(lines[line - 1])
    (folder / file).write_bytes(b"".join(lines))
    sentence = bench.refused(folder, *place)
    assert f"{file}, line {line}: " in sentence
    assert said in sentence
    assert "; " in sentence  # a remedy follows


@pytest.mark.parametrize("content", [b"", b"\n\n"])
@pytest.mark.parametrize(
    ("place", "file"), [(RISE["convert"], EPISODES), (RISE["generate"], PROBLEMS), (RISE["sft"], EXAMPLES)]
)
def test_an_empty_data_set_is_refused(
    request: pytest.FixtureRequest, tmp_path: Path, place: Place, file: str, content: bytes
) -> None:
    bench = bench_of(place, request)
    folder = bench.copy(tmp_path / "bench")
    (folder / file).write_bytes(content)
    assert f"{file} is empty; " in bench.refused(folder, *place)


@pytest.mark.parametrize(
    ("place", "missing"),
    [
        (RISE["generate"], "models/rise/base"),
        (RISE["sft"], "models/rise/start"),
        (("rise.evaluate", "base"), "models/rise/base"),
        (RISE["convert"], EPISODES),
        (("base", "rise"), TEXTS),
        (("agent_r.generate", "iter1"), "models/agent_r/base"),
        (AGENT["convert"], TREES),
        (AGENT["convert"], "data/agent_r/base/train"),
        (("agent_r.evaluate", "base"), "models/agent_r/base"),
        (AGENT_EVALUATE, BEGINNINGS),
        (AGENT_SFT, "models/agent_r/start"),
        (("agent_r.report", ""), "results/agent_r/base"),
        (REFLECT, TAUGHT),
        (SPIN, PLAYED),
    ],
)
def test_a_missing_input_is_reported_with_the_command_that_creates_it(
    request: pytest.FixtureRequest, tmp_path: Path, place: Place, missing: str
) -> None:
    bench = bench_of(place, request)
    folder = copied(bench, tmp_path / "bench")
    shutil.rmtree(folder / missing) if (folder / missing).is_dir() else (folder / missing).unlink(missing_ok=True)
    method = place[1] if place[0] == "base" else place[0].partition(".")[0]
    assert f"{missing} does not exist; run `make repro METHOD={method}`" in bench.refused(folder, *place)


@pytest.mark.parametrize("stage", ["rise.generate", "agent_r.generate", "agent_r.convert", "agent_r.finetune"])
def test_an_iteration_that_is_not_in_the_params_is_refused(
    request: pytest.FixtureRequest, tmp_path: Path, stage: str
) -> None:
    bench = bench_of((stage, ""), request)
    folder = bench.copy(tmp_path / "bench")
    there = "base, " if stage.endswith("finetune") else ""  # the base is trained, too
    said = bench.refused(folder, stage, "iter7")
    assert f"params.yaml has no entry 'iter7' for this stage; it has: {there}" in said
    assert "iter1, iter2" in said
    assert "no entry ''" in bench.refused(folder, stage)
