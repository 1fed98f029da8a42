"""The table that compares methods with shared test tasks, built from hand-written outputs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from selfimprove.apps.claims.arena import main
from selfimprove.apps.page import tables
from selfimprove.apps.page.build import environment
from selfimprove.apps.page.run import Run
from selfimprove.apps.report.arena import Arena, arena, arena_tables, attempts_of, between_of, rows_of, same_start
from selfimprove.apps.report.schema import TIMING
from selfimprove.apps.report.table import read_summaries, show
from selfimprove.core.errors import UserError
from selfimprove.core.outcomes import Outcome
from selfimprove.core.publish import write_json, write_text
from selfimprove.core.records import mean_and_error, write_jsonl
from selfimprove.pipeline.recorded import SUMMARIES
from tests.support.profiles import profile

ARENAS = ("arena-textcraft", "arena-encyclopedia")
METRIC = {"rise": "m1@t3", "agent_r": "success", "reflect_rl": "success", "spin": "em"}
ROWS = {
    "rise": ("base", "more_sft", "iter1", "iter2"),
    "agent_r": ("base", "more_sft", "iter1", "iter2"),
    "reflect_rl": ("policy", "more_sft", "reflect_rl"),
    "spin": ("base", "more_sft", "iter0", "iter1"),
}
SOLVED = {
    "rise": ([1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]),
    "agent_r": ([0, 0, 0, 0], [1, 0, 0, 0], [1, 0, 1, 0]),
    "reflect_rl": ([0, 0, 1, 1], [0, 0, 1, 1], [0, 1, 1, 1]),
    "spin": ([1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1]),
}
"""Whether each of four tasks was solved, for base, more SFT and last."""


def write_method(root: Path, method: str, tasks: Sequence[int] = (7, 3, 5, 9), env: str = "textcraft") -> None:
    """Write the outputs of a small run of the method: 1,000 tokens of warm start, 250 per iteration."""
    base, *_, last = ROWS[method]
    results, metric = root / "results" / method, METRIC[method]
    attempts = {"m1@t1": 0.0, "p1@t3": 1.0} if method == "rise" else {}
    for row in (*ROWS[method], *(["reflector"] if method == "reflect_rl" else [])):
        (results / row).mkdir(parents=True)
        solved = SOLVED[method][{base: 0, "more_sft": 1, "reflector": 0}.get(row, 2)]
        write_jsonl(
            results / row / "outcomes.jsonl",
            [
                Outcome(
                    id=f"{env}-{task}",
                    values={metric: float(one), **attempts},
                )
                for task, one in zip(tasks, solved, strict=True)
            ],
        )
        tokens = {base: 1000, "more_sft": 500, "reflector": 400}.get(row, 250)
        write_json(results / row / "train.json", {"real_tokens": tokens, "episodes": 40})
        write_json(results / row / "generate.json", {"samples": 31, "leaves": 32, "em": {"mean": 0.5, "n": 33}})
        for step in ("generate", "convert", "finetune", "reinforce"):
            write_json(
                root / TIMING / f"{method}-{step}@{row}.json",
                {"seconds": 2.0, "actor_generated_tokens": 500, "teacher_generated_tokens": 0},
            )
    for step in ("generate", "convert"):
        write_json(root / TIMING / f"{method}-{step}.json", {"seconds": 1.0})
    summary = {
        "columns": [metric], "order": list(ROWS[method]), "last": last,
        "rows": {
            row: {"what": row, "metrics": {metric: mean_and_error([0, 1])}, "training_tokens": 500}
            for row in ROWS[method]
        },
        "gains": [], "rates": {}, "note": "", "solid": [], "last_minus": {},
    }  # fmt: skip
    write_json(root / SUMMARIES / f"{method}.json", summary)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_text(tmp_path / "params.yaml", json.dumps(profile("arena-textcraft")))
    return tmp_path


def found(root: Path) -> Arena:
    one = arena(root, read_summaries(root=root))
    assert one is not None
    return one


def estimate(values: Mapping[str, Any]) -> tuple[float, int]:
    return round(values["mean"], 4), values["n"]


def test_differences_are_paired_by_task_whatever_the_order_in_the_files(root: Path) -> None:
    write_method(root, "rise")
    write_method(root, "reflect_rl")
    other = root / "results/reflect_rl/reflect_rl/outcomes.jsonl"
    other.write_text("".join(reversed(other.read_text().splitlines(keepends=True))))
    one = found(root)
    rise = one["methods"]["rise"]
    assert {kind: estimate(value) for kind, value in rise["values"].items()} == {
        "base": (0.25, 4), "more": (0.5, 4), "last": (0.75, 4)
    }  # fmt: skip
    assert {kind: estimate(value) for kind, value in rise["minus"].items()} == {"base": (0.5, 4), "more": (0.25, 4)}
    # (1, 1, 1, 0) - (0, 1, 1, 1), task by task: (1, 0, 0, -1), with the error of the paired differences.
    assert one["between"]["rise-reflect_rl"] == {"mean": 0.0, "se": pytest.approx((2 / 3 / 4) ** 0.5), "n": 4}
    assert between_of(one)[1][2].startswith("+.000±.408")


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("rise/iter2/train.json", '{"real_tokens": "x"}', "field 'real_tokens' must be a number"),
        ("rise/iter1/generate.json", '{"samples": []}', "field 'samples' must be a number"),
    ],
)
def test_the_comparison_names_a_damaged_file(file: str, text: str, said: str, root: Path) -> None:
    write_method(root, "rise")
    write_method(root, "reflect_rl")
    write_text(root / "results" / file, text)
    with pytest.raises(UserError, match=f"{file}: {said}; restore the file, or run `make repro`"):
        found(root)


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"rise": []}, "params.yaml, rise: "),
        ({"base": [1]}, "params.yaml, base.rise: "),
        ({"rise": {"iterations": {"iter2": {"init": 3}}}}, "params.yaml, rise: field 'iterations.iter2.init'"),
        ({"rise": {"iterations": {"iter2": {"init": "iter2"}}}}, "'iter2' is no iteration, or builds on itself"),
    ],
)
def test_the_comparison_names_a_wrong_key_of_params_yaml(params: dict[str, Any], said: str, root: Path) -> None:
    write_method(root, "rise")
    write_method(root, "reflect_rl")
    write_json(root / "params.yaml", profile("arena-textcraft") | params)
    with pytest.raises(UserError, match=said):
        found(root)


def test_tokens_episodes_and_seconds_include_everything_that_produced_the_last_row(root: Path) -> None:
    for method in ROWS:
        write_method(root, method)
    methods = found(root)["methods"]
    assert {name: one["warm_tokens"] for name, one in methods.items()} == {
        "rise": 1000, "agent_r": 1000, "reflect_rl": 1400, "spin": 1000
    }  # fmt: skip
    assert {name: one["tokens"] for name, one in methods.items()} == {
        "rise": 500, "agent_r": 500, "reflect_rl": 250, "spin": 500
    }  # fmt: skip
    assert {name: one["episodes"] for name, one in methods.items()} == {
        "rise": 62, "agent_r": 64, "reflect_rl": 40, "spin": 66
    }  # fmt: skip
    # Base and two iterations of three stages; teaching, two supervised models, and reinforcement.
    assert {name: (one["seconds"], one["generated"]) for name, one in methods.items()} == {
        "rise": (14.0, 3500), "agent_r": (14.0, 3500), "reflect_rl": (8.0, 1500), "spin": (14.0, 3500)
    }  # fmt: skip


def test_accuracy_of_the_first_attempt_alone_and_of_any_attempt_is_reported(root: Path) -> None:
    write_method(root, "rise")
    write_method(root, "spin")
    (said,) = attempts_of(found(root))
    assert said == (
        "RISE: the first attempt alone is correct in .000±.000 (base), .000±.000 (more SFT), .000±.000 (last); at "
        "least one attempt in 1.00±.000 (base), 1.00±.000 (more SFT), 1.00±.000 (last)."
    )
    assert said in str(arena_tables(found(root))[0].caption)


def test_without_a_stage_s_timing_neither_generated_tokens_nor_seconds_are_shown(root: Path) -> None:
    write_method(root, "rise")
    write_method(root, "spin")
    (root / TIMING / "spin-convert@iter0.json").unlink()
    rows = {row[0]: row[-2:] for row in rows_of(found(root)) if len(row) > 2}
    assert rows == {"RISE": ["4k", "14"], "SPIN": ["-", "-"]}


def test_methods_without_results_or_with_other_tasks_are_listed_with_the_reason(root: Path) -> None:
    write_method(root, "rise")
    write_method(root, "agent_r")
    write_method(root, "reflect_rl", env="taxi")
    one = found(root)
    assert one["methods"]["reflect_rl"] == {"missing": "was tested on other tasks than textcraft's 4"}
    assert one["methods"]["spin"] == {"missing": "no results yet; run `make repro METHOD=spin`"}
    console = Console(width=100, file=StringIO(), record=True)
    for table in arena_tables(one):
        show(table, console)
    text = console.export_text()
    assert "Reflect-RL: was tested on other tasks" in text
    assert "SPIN: no results yet" in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 100


def test_methods_with_different_test_tasks_are_not_compared(root: Path) -> None:
    write_method(root, "rise")
    write_method(root, "agent_r", tasks=(7, 3, 5, 8))
    assert arena(root, read_summaries(root=root)) is None


def test_a_single_run_is_published_under_the_kernels_that_its_params_select(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    params = profile("arena-textcraft")
    params["run"] |= {"kernels": "portable", "seed": 18}
    write_text(root / "params.yaml", json.dumps(params))
    for method in ("rise", "spin"):
        write_method(root, method)
    monkeypatch.chdir(root)
    monkeypatch.setattr("sys.argv", ["arena"])
    main()
    file = "results/published/arena/textcraft-portable-18.json"
    assert capsys.readouterr().out == f"{file}\n"
    assert json.loads((root / file).read_text())["kernels"] == "portable"


def test_summaries_without_outcomes_are_not_compared(root: Path) -> None:
    for method in ("rise", "spin"):
        write_method(root, method)
        for file in (root / "results" / method).glob("*/outcomes.jsonl"):
            file.unlink()
    assert arena(root, read_summaries(root=root)) is None


def test_the_page_has_the_same_cells_and_reports_unreadable_outcomes(root: Path) -> None:
    write_method(root, "rise")
    write_method(root, "spin")
    table, between = tables.arena(Run(root))
    assert table.rows == [row for row in rows_of(found(root)) if len(row) > 2]
    assert [text for text, _ in between.head] == ["", "− RISE", "− SPIN"]
    html = (
        environment()
        .from_string('{% import "parts.html" as parts %}{% for one in arena %}{{ parts.table(one, "a") }}{% endfor %}')
        .render(arena=[table, between])
    )
    assert '<td class="number">+.250±' in html
    run = Run(root)
    (root / "results/spin/base/outcomes.jsonl").write_text("{torn")
    assert tables.arena(run) == []
    assert "the methods cannot be compared" in run.problems[0]


def test_a_row_that_was_not_trained_is_left_out_of_the_comparison(root: Path) -> None:
    write_method(root, "rise")
    write_method(root, "spin")
    file = root / SUMMARIES / "spin.json"
    summary = json.loads(file.read_text())
    summary["order"].remove("more_sft")
    write_json(file, summary)
    assert found(root)["methods"]["spin"]["minus"].keys() == {"base"}
    assert [row[3] for row in rows_of(found(root)) if row[0] == "SPIN"] == ["-"]


@pytest.mark.parametrize("name", ARENAS)
def test_an_arena_s_methods_share_environment_tasks_start_and_tokens(name: str) -> None:
    params = profile(name)
    methods = list(METRIC)
    assert same_start(params, methods)
    assert len({params[method]["env"]["name"] for method in methods}) == 1
    tasks = [params[method]["tasks"] for method in methods]
    for split in ("dev", "test"):
        assert len({one[split] for one in tasks}) == 1
    taught = params["rise"]["iterations"]["iter1"]["generate"]
    assert "teacher" in taught["models"]
    explained = params["reflect_rl"]["generate"]
    experts = {
        "rise": params["rise"]["tasks"]["demonstrations"] + taught["tasks"],
        "agent_r": params["agent_r"]["tasks"]["demonstrations"],
        "reflect_rl": explained["tasks"],
        "spin": params["spin"]["tasks"]["train"],
    }
    assert len(set(experts.values())) == 1, experts
    assert explained["negative_tasks"] == explained["tasks"]
    assert len({one["train"] + (one.get("demonstrations") or 0) for one in tasks[:3]}) == 1  # not SPIN
    rows = [params[method]["rows"] for method in ("rise", "agent_r", "spin")]
    warm = {one["base"]["train"]["max_train_tokens"] for one in rows}
    models = params["reflect_rl"]["models"]
    warm.add(sum(models[key]["train"]["max_train_tokens"] for key in ("policy", "reflector")))
    assert len(warm) == 1
    learnt = [[one[key]["train"]["max_train_tokens"] for key in one if key.startswith("iter")] for one in rows]
    (run,) = params["reflect_rl"]["iterations"].values()
    assert {sum(tokens) for tokens in learnt} == {run["rl"]["max_train_tokens"]}


def test_methods_have_the_same_start_only_if_it_is_the_same_named_model() -> None:
    params = profile("arena-textcraft")
    assert same_start(params, list(METRIC))
    params["base"]["spin"] |= {"model": None, "chat_template": None}
    assert not same_start(params, list(METRIC))
    assert same_start(params, ["rise", "agent_r", "reflect_rl"])
    params["base"]["rise"]["model"] = None
    assert not same_start(params, ["rise", "spin"])
