"""Bad input to the real stages: one sentence on stderr, exit code 2, nothing published and nothing lost.

Each test breaks one thing in a working folder. Other files test rows, missing files and unknown items of every method
(tests/contracts/test_bad_input.py), params (tests/pipeline/test_params.py), a full disk and concurrent runs
(tests/contracts/test_rerun.py), and declared sources (tests/core/test_sources.py).
"""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from selfimprove.training.processes import free_port
from tests.engines.http_endpoint import Reply, Seen, echo, endpoint
from tests.pipeline.workbench import Workbench, lines_of, published, write_params
from tests.support.tiny import train_tokenizer

pytestmark = pytest.mark.timeout(600)

EXAMPLES = "data/rise/base/train/examples.jsonl"


def engine(**options: Any) -> dict[str, Any]:
    return {"rise": {"engines": {"student": options}}}


def test_the_error_names_a_missing_model_folder_of_an_engine_or_the_base(rise_bench: Workbench, tmp_path: Path) -> None:
    teacher = {"engine": "transformers", "model": "models/nowhere"}
    folder = rise_bench.copy(tmp_path / "engine", {"rise": {"engines": {"teacher": teacher}}})
    assert "models/nowhere contains no model (no config.json)" in rise_bench.refused(folder, "rise.generate", "iter1")
    folder = rise_bench.copy(tmp_path / "student", engine(model="models/nowhere"))
    assert "set base.rise.model to use a model of your own" in rise_bench.refused(folder, "rise.generate", "iter1")
    folder = rise_bench.copy(tmp_path / "base", {"base": {"rise": {"model": "models/nowhere"}}})
    assert "base.rise: model 'models/nowhere' is not a folder" in rise_bench.refused(folder, "base", "rise")


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_model_folder_without_a_file_it_needs_is_refused(rise_bench: Workbench, tmp_path: Path, missing: str) -> None:
    folder = rise_bench.copy(tmp_path / "bench")
    (folder / "models/rise/base" / missing).unlink()
    sentence = rise_bench.refused(folder, "rise.generate", "iter1")
    assert "models/rise/base" in sentence
    assert missing in sentence


def test_a_truncated_weight_file_is_refused(rise_bench: Workbench, tmp_path: Path) -> None:
    folder = rise_bench.copy(tmp_path / "bench")
    weights = folder / "models/rise/base/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert "models/rise/base: the model cannot be loaded" in rise_bench.refused(folder, "rise.generate", "iter1")
    shutil.copy(weights, folder / "models/rise/start/model.safetensors")
    assert "models/rise/start" in rise_bench.refused(folder, "rise.finetune", "base")


def test_a_model_without_a_chat_template_is_refused_and_the_error_names_the_param(
    rise_bench: Workbench, tmp_path: Path
) -> None:
    folder = rise_bench.copy(tmp_path / "bench")
    for model in ("rise/base", "rise/start"):
        (folder / f"models/{model}/chat_template.jinja").unlink()
    for stage, item in (("rise.generate", "iter1"), ("rise.finetune", "base")):
        sentence = rise_bench.refused(folder, stage, item)
        assert "has no chat template; name one with the param chat_template" in sentence
    given = rise_bench.copy(tmp_path / "own", {"base": {"rise": {"model": "given"}}})
    shutil.copytree(folder / "models/rise/start", given / "given")
    assert "given has no chat template" in rise_bench.refused(given, "base", "rise")


def test_a_tokenizer_of_another_model_is_refused(rise_bench: Workbench, tmp_path: Path) -> None:
    folder = rise_bench.copy(tmp_path / "bench")
    train_tokenizer(tmp_path / "other", vocab_size=400)
    for model in ("rise/base", "rise/start"):
        shutil.copy(tmp_path / "other/tokenizer.json", folder / f"models/{model}/tokenizer.json")
    said = rise_bench.refused(folder, "rise.generate", "iter1")
    assert "models/rise/base: the tokenizer has " in said
    assert "put the model's own tokenizer.json into the folder" in said
    rows = [json.loads(line) for line in lines_of(folder / EXAMPLES)]
    rows[0]["messages"][-1]["token_ids"] = [395]  # not in this model's vocabulary
    (folder / EXAMPLES).write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert "models/rise/start" in rise_bench.refused(folder, "rise.finetune", "base")


def remote(**more: Any) -> dict[str, Any]:
    engine = {"engine": "openai", "model": "m", "tries": 1, "backoff": 0.0, "timeout": 5.0, **more}
    return {"rise": {"engines": {"teacher": engine}}}


def test_the_error_names_an_unreachable_endpoint_and_finished_work_is_kept(
    rise_bench: Workbench, tmp_path: Path
) -> None:
    url = f"http://127.0.0.1:{free_port()}/v1"
    folder = rise_bench.copy(tmp_path / "bench", remote(base_url=url, api_key_env=None))
    sentence = rise_bench.refused(folder, "rise.generate", "iter1")
    assert url in sentence
    (journal,) = folder.glob(".scratch/stages/rise-generate-iter1/*/completions.journal")
    kept = len(lines_of(journal))
    assert kept >= 1  # the student's attempts, which were sent to the teacher
    again = rise_bench.forks.run(folder, "rise.generate", "iter1")
    assert again.code == 2
    assert (
        again.log.count("computed") == again.log.count("journaled") <= 6 - kept
    )  # journaled completions are not computed again
    assert len(lines_of(journal)) == kept + again.log.count("journaled")


def moody(failing: set[int]) -> Callable[[Seen], Reply]:
    """A teacher that refuses the calls with these numbers, counted from 1."""
    numbers = itertools.count(1)
    return lambda seen: Reply(400, b'{"error": {"message": "no"}}') if next(numbers) in failing else echo(seen)


def test_too_many_blocked_episodes_end_the_stage_and_a_rerun_requests_only_those(
    rise_bench: Workbench, tmp_path: Path
) -> None:
    with endpoint(then=moody({2, 4})) as server:
        folder = rise_bench.copy(tmp_path / "bench", remote(base_url=server.url, api_key_env=None))
        sentence = rise_bench.refused(folder, "rise.generate", "iter1")
        assert "2 of 6 episodes are blocked; the first, " in sentence
        assert "run.max_blocked allows a share of 0.05; fix the cause and run again: finished episodes" in sentence
        asked = len(server.seen)
        assert rise_bench.forks.run(folder, "rise.generate", "iter1").code == 0
        assert len(server.seen) - asked == 2
    assert json.loads((folder / "results/rise/iter1/generate.json").read_text())["blocked"] == 0


def test_blocked_episodes_are_reported_and_requested_again_even_after_publication(
    rise_bench: Workbench, tmp_path: Path
) -> None:
    with endpoint(then=moody({3})) as server:
        changes = {**remote(base_url=server.url, api_key_env=None), "run": {"max_blocked": 0.2}}
        folder = rise_bench.copy(tmp_path / "bench", changes)
        ran = rise_bench.forks.run(folder, "rise.generate", "iter1")
        assert ran.code == 0
        (told,) = [line for line in ran.lines if "blocked" in line]
        assert told.startswith("rise-generate@iter1: 1 of 6 episodes are blocked; the first, ")
        assert json.loads((folder / "results/rise/iter1/generate.json").read_text())["blocked"] == 1
        asked = len(server.seen)
        assert rise_bench.forks.run(folder, "rise.generate", "iter1").code == 0
        assert len(server.seen) - asked == 1  # the answers of the published run are still in its journal
    assert json.loads((folder / "results/rise/iter1/generate.json").read_text())["blocked"] == 0


def test_the_error_names_a_missing_api_key_and_never_shows_a_present_one(rise_bench: Workbench, tmp_path: Path) -> None:
    folder = rise_bench.copy(tmp_path / "bench", remote(base_url="http://127.0.0.1:9/v1", api_key_env="MY_TEST_KEY"))
    assert "MY_TEST_KEY" in rise_bench.refused(folder, "rise.generate", "iter1")
    sentence = rise_bench.refused(folder, "rise.generate", "iter1", env={"MY_TEST_KEY": "sk-secret-1234"})
    assert "sk-secret" not in sentence


def test_requesting_more_problems_than_the_split_has_is_refused(rise_bench: Workbench, tmp_path: Path) -> None:
    folder = rise_bench.copy(tmp_path / "bench", {"rise": {"iterations": {"iter1": {"generate": {"tasks": 99}}}}})
    assert "iterations.iter1.generate: offset 0 + tasks 99 exceeds tasks.train, which is 12" in rise_bench.refused(
        folder, "rise.generate", "iter1"
    )


def test_invalid_problem_files_are_refused_and_edited_ones_give_new_splits(
    rise_bench: Workbench, tmp_path: Path
) -> None:
    files = {"source": "files", "files": {"train": "my/train.jsonl", "test": "my/test.jsonl"}}
    counts = {"demonstrations": 1, "train": 3, "dev": 1, "test": 2}
    collected = {"iter1": {"generate": {"tasks": 3}}, "iter2": {"generate": {"tasks": 3, "offset": 0}}}
    folder = rise_bench.copy(tmp_path / "bench", {"rise": {"tasks": {**files, **counts}, "iterations": collected}})
    assert "my/train.jsonl does not exist" in rise_bench.refused(folder, "rise.data")
    rows = [json.dumps({"question": f"What is {n} + 1?", "answer": f"#### {n + 1}"}) for n in range(9)]
    (folder / "my").mkdir()
    (folder / "my/test.jsonl").write_text("\n".join(rows[5:7]))
    (folder / "my/train.jsonl").write_text("\n".join(rows[:4]))
    said = rise_bench.refused(folder, "rise.data")
    assert "rise.tasks.demonstrations: 1 problems are requested, but 0 of 4 are left; request fewer" in said
    (folder / "my/train.jsonl").write_text("\n".join(rows[:5]).replace("#### 3", "3"))
    assert "my/train.jsonl, line 3" in rise_bench.refused(folder, "rise.data")
    (folder / "my/train.jsonl").write_text("\n".join(rows[:5]))
    assert rise_bench.forks.run(folder, "rise.data").code == 0
    (folder / "my/train.jsonl").write_text("\n".join(rows[:4] + rows[8:]))  # edited, so the splits must change
    assert rise_bench.forks.run(folder, "rise.data").code == 0
    splits = b"".join(path.read_bytes() for path in (folder / "data/rise").rglob("*.jsonl"))
    assert b"What is 8 + 1" in splits
    assert b"What is 4 + 1" not in splits


def test_a_stage_script_run_by_python_refuses_bad_params_in_the_same_way(rise_bench: Workbench, tmp_path: Path) -> None:
    """In a new Python process, not in a fork as in the other tests."""
    folder = rise_bench.copy(tmp_path / "bench")
    write_params(folder, {"rise": {"rows": {"base": {"train": {"epochz": 1}}}}})
    before = published(folder)
    done = subprocess.run(
        [sys.executable, "-m", "stages.rise.finetune", "base"], cwd=folder, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert (
        done.stderr
        == "rise-finetune@base: params.yaml: rise.rows.base.train.epochz: unknown key; did you mean 'epochs'?\n"
    )
    assert published(folder) == before
