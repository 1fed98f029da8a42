"""The leaderboard without the harness: parsing its output, the mean of six tasks, the files, the table, bad input.

The harness itself runs in tests/backends/test_leaderboard.py.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from selfimprove.apps.leaderboard import results as files
from selfimprove.apps.leaderboard.local_data import CHOICES, write_local_data
from selfimprove.apps.leaderboard.results import Metric, Results, Settings
from selfimprove.apps.leaderboard.suite import LEADERBOARD, LOCAL, PUBLISHED, LeaderboardTask, select
from selfimprove.core.errors import UserError
from selfimprove.core.records import read_rows
from selfimprove.envs.math.gsm8k import parse_gold

SETTINGS = Settings(harness="lm-eval 0", transformers="5", dtype="float32", batch_size=8, limit=None)
GSM8K = next(task for task in LEADERBOARD if task.name == "gsm8k")
MMLU = next(task for task in LEADERBOARD if task.name == "mmlu")


def metric(task: LeaderboardTask, value: float) -> Metric:
    return Metric(value=value, stderr=0.01, n=100, few_shot=task.few_shot, metric=task.key, versions={task.name: 1.0})


def evaluated(model: str = "models/spin/iter3", without: tuple[str, ...] = (), **settings: Any) -> Results:
    metrics = PUBLISHED["SPIN iteration 3 (paper)"]
    tasks = {task.name: metric(task, value / 100) for task, value in zip(LEADERBOARD, metrics, strict=True)}
    return Results(
        model=model,
        key="k",
        settings=SETTINGS.model_copy(update=settings),
        tasks={name: found for name, found in tasks.items() if name not in without},
    )


def printed(*found: Results) -> str:
    out = io.StringIO()
    Console(file=out, width=200).print(files.table(found))
    return out.getvalue()


def row(text: str, name: str) -> list[str]:
    [line] = [line for line in text.splitlines() if line.strip().startswith(name)]
    return line.split()


def answer(**changes: Any) -> dict[str, Any]:
    """The parts of the harness's output for GSM8K that are read."""
    return {
        "results": {"gsm8k": {"exact_match,strict-match": 0.25, "exact_match_stderr,strict-match": 0.012,
                              "exact_match,flexible-extract": 0.5, "exact_match_stderr,flexible-extract": 0.1}},
        "n-shot": {"gsm8k": 5},
        "n-samples": {"gsm8k": {"original": 1319, "effective": 1319}},
        "versions": {"gsm8k": 3.0},
        "group_subtasks": {},
    } | changes  # fmt: skip


def test_the_six_tasks_have_the_paper_s_few_shot_examples_and_metrics() -> None:
    assert {task.name: (task.few_shot, task.metric) for task in LEADERBOARD} == {
        "arc_challenge": (25, "acc_norm"), "hellaswag": (10, "acc_norm"), "mmlu": (5, "acc"),
        "truthfulqa_mc2": (0, "acc"), "winogrande": (5, "acc"), "gsm8k": (5, "exact_match"),
    }  # fmt: skip


def test_the_mean_of_the_six_tasks_equals_the_paper_s() -> None:
    means = [sum(metrics) / len(metrics) for metrics in PUBLISHED.values()]
    assert means == pytest.approx([58.14, 63.16], abs=0.006)
    mean = evaluated().mean
    assert mean is not None
    assert 100 * mean == pytest.approx(63.16, abs=0.006)


@pytest.mark.parametrize("task", LEADERBOARD, ids=lambda task: task.name)
def test_if_a_task_is_missing_there_is_no_mean(task: LeaderboardTask) -> None:
    found = evaluated(without=(task.name,))
    assert found.mean is None
    assert found.missing == [task.name]
    cells = row(printed(found), "spin--iter3")
    assert cells.count(files.MISSING) == 2, "the task's cell and the mean's"


def test_a_limited_number_of_questions_gives_no_mean_and_a_note() -> None:
    text = printed(evaluated(limit=20))
    assert evaluated(limit=20).mean is None
    assert "spin--iter3*" in text
    assert "* only the first 20 questions of each task: no result to report" in text


def test_gsm8k_uses_the_strict_match_metric() -> None:
    found = files.parse_metric(GSM8K, answer())
    assert (found.value, found.stderr, found.n, found.few_shot) == (0.25, 0.012, 1319, 5)
    assert found.versions == {"gsm8k": 3.0}


def test_the_questions_of_a_group_are_summed_over_its_tasks() -> None:
    leaves = {"mmlu_anatomy": 135, "mmlu_virology": 166, "mmlu_law": 10}
    found = files.parse_metric(
        MMLU,
        {
            "results": {"mmlu": {"acc,none": 0.6, "acc_stderr,none": 0.004}},
            "group_subtasks": {"mmlu": ["mmlu_stem", "mmlu_other"], "mmlu_stem": ["mmlu_anatomy", "mmlu_virology"],
                               "mmlu_other": ["mmlu_law"]},
            "n-shot": dict.fromkeys(leaves, 5),
            "n-samples": {name: {"original": n, "effective": n} for name, n in leaves.items()},
            "versions": dict.fromkeys(leaves, 1.0),
        },
    )  # fmt: skip
    assert found.n == 311
    assert sorted(found.versions) == sorted(leaves)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"results": {}}, "gave no exact_match,strict-match for gsm8k (it gave: nothing)"),
        ({"results": {"gsm8k": {"acc,none": 1.0}}}, r"it gave: acc,none"),
        ({"n-shot": {"gsm8k": 0}}, "with 0 examples where 5 belong"),
    ],
)
def test_output_without_the_requested_metric_or_few_shot_examples_is_refused(
    changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(UserError) as caught:
        files.parse_metric(GSM8K, answer(**changes))
    assert told in str(caught.value)
    assert "delete .venvs/leaderboard and run `make env-leaderboard`" in str(caught.value)


def test_an_unavailable_standard_error_is_read_as_none() -> None:
    results = {"gsm8k": {"exact_match,strict-match": 1.0, "exact_match_stderr,strict-match": "N/A"}}
    assert files.parse_metric(GSM8K, answer(results=results)).stderr is None


def test_result_files_round_trip_and_include_the_mean(tmp_path: Path) -> None:
    path = files.write(evaluated(), tmp_path)
    assert path == tmp_path / "spin--iter3.json"
    assert json.loads(path.read_text())["mean"] == pytest.approx(0.63165, abs=1e-6)
    assert files.read(path) == evaluated()
    assert [file.name for file in tmp_path.iterdir()] == [path.name], "written whole, nothing left beside"


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "", "[]", "{", '{"model": "m"}', '{"model": "m", "key": "k", "more": 1}']
)
def test_the_error_names_a_damaged_result_file(tmp_path: Path, text: str) -> None:
    path = tmp_path / "m.json"
    path.write_text(text)
    with pytest.raises(UserError, match="not a leaderboard result") as caught:
        files.read(path)
    assert str(path) in str(caught.value)


def test_the_table_has_every_model_and_the_paper_s_rows() -> None:
    local = Results(
        model="org/small@v1", key="k", settings=SETTINGS, tasks={LOCAL[0].name: metric(LOCAL[0], 0.5)}
    )  # fmt: skip
    text = printed(evaluated(), local)
    assert row(text, "spin--iter3")[1:3] == ["65.87±1.0", "54.90±1.0"]
    assert row(text, "spin--iter3")[-1] == "63.16"
    assert row(text, "org--small@v1").count(files.MISSING) == 7
    assert "zephyr-7b-sft-full (paper)" in text
    assert "ARC: acc_norm,none, 25 examples" in text


def test_a_table_of_local_tasks_shows_neither_the_mean_of_six_nor_the_paper_s_rows() -> None:
    tasks = {task.name: metric(task, 1.0) for task in LOCAL}
    local = Results(model="small", key="k", settings=SETTINGS, tasks=tasks)
    text = printed(local)
    assert "mean of six" not in text
    assert "paper" not in text
    assert row(text, "small")[1:] == ["100.00±1.0", "100.00±1.0"]


def test_tasks_are_chosen_by_suite_or_name() -> None:
    assert select("auto") == select("leaderboard") == LEADERBOARD
    assert select("local") == LOCAL
    assert [task.name for task in select("gsm8k, mmlu,gsm8k")] == ["gsm8k", "mmlu"]


@pytest.mark.parametrize(
    ("names", "told"), [("gms8k", "'gsm8k'"), ("gsm8k,", "choose among: auto"), ("lokal", "'local'")]
)
def test_an_unknown_task_is_refused_with_a_suggestion(names: str, told: str) -> None:
    with pytest.raises(UserError, match="TASKS: there is no task") as caught:
        select(names)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("models/rise/base", "rise--base"), ("./models/rise/base/", "rise--base"), ("models", "models"),
        ("org/name", "org--name"), ("org/name@v1.0", "org--name@v1.0"), ("/tmp/a b/m", "tmp--a-b--m"),
    ],
)  # fmt: skip
def test_a_result_file_is_named_after_its_model(model: str, name: str) -> None:
    assert files.label(model) == name


@given(st.text(min_size=1).filter(lambda text: "\x00" not in text))
def test_no_model_name_leads_out_of_the_results_folder(model: str) -> None:
    assert "/" not in files.label(model)
    assert (Path("results") / f"{files.label(model)}.json").resolve().parent == Path("results").resolve()


def test_other_weights_or_settings_give_another_key(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(b"one")
    first = files.fingerprint(str(tmp_path))
    weights.write_bytes(b"two")
    second = files.fingerprint(str(tmp_path))
    assert first is not None
    assert second is not None
    keys = {files.key_of(first, SETTINGS), files.key_of(second, SETTINGS)}
    keys.add(files.key_of(first, SETTINGS.model_copy(update={"limit": 5})))
    assert len(keys) == 3
    assert files.key_of(first, SETTINGS) in keys


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a folder without a config\.json"):
        files.fingerprint(str(tmp_path))


@pytest.mark.parametrize("name", ["models/spin/nowhere", "../nowhere/", "a/b/c", "no where", "-x", "a@", "./gpt2"])
def test_the_error_names_a_model_that_does_not_exist(name: str) -> None:
    with pytest.raises(UserError, match="this folder does not exist") as caught:
        files.fingerprint(name)
    assert f"MODEL={name}" in str(caught.value)


@pytest.mark.parametrize("name", ["gpt2", "org/name", "org/name-7b.v1@refs/pr/1", "org/name@0e9e39f"])
def test_a_model_on_the_hub_has_no_fingerprint(name: str) -> None:
    assert files.fingerprint(name) is None


def test_the_local_multiple_choice_questions_have_the_correct_answer_among_four(tmp_path: Path) -> None:
    data = write_local_data(tmp_path)
    assert {task.name for task in LOCAL} == set(data)
    labels = []
    for split in ("train", "test"):
        solved = [found for _, found in read_rows(Path(data["local_problems"][split]))]
        choices = [found for _, found in read_rows(Path(data["local_choice"][split]))]
        for problem, choice in zip(solved, choices, strict=True):
            assert problem["question"] == choice["question"]
            assert choice["choices"][choice["label"]] == parse_gold(problem["answer"])
            assert len(set(choice["choices"])) == CHOICES
            labels.append(choice["label"])
    assert set(labels) == set(range(CHOICES)), "the right one stands anywhere"
    shown = {found["question"] for _, found in read_rows(Path(data["local_problems"]["train"]))}
    asked = {found["question"] for _, found in read_rows(Path(data["local_problems"]["test"]))}
    assert not shown & asked


def test_the_local_data_is_byte_identical_every_time(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_local_data(tmp_path / name)
    for file in (tmp_path / "one").iterdir():
        assert file.read_bytes() == (tmp_path / "two" / file.name).read_bytes()
