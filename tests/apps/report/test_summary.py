"""The summary: all rows in order, their metrics, and the last iteration's paired differences to every other row."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from selfimprove.apps.report import table as table_command
from selfimprove.apps.report.schema import TIMING
from selfimprove.apps.report.table import (
    difference_table,
    draw,
    fitted,
    overview,
    read_summaries,
    results_table,
    show,
)
from selfimprove.apps.report.words import signed_text
from selfimprove.core.errors import UserError
from selfimprove.core.outcomes import Outcome
from selfimprove.core.publish import write_json, write_text
from selfimprove.core.records import mean_and_error, write_jsonl
from selfimprove.methods.omissions import OMISSIONS
from selfimprove.methods.rise.params import RiseParams
from selfimprove.methods.rise.summary import headline, rise_rows, summarise_rise, turn_rows
from selfimprove.pipeline.recorded import SUMMARIES
from tests.support.profiles import profile

ROWS = ["base", "more_sft", "single_turn", "unweighted", "iter1", "iter2"]
COLUMNS = ["m1@t1", "m5@t1", "m1@t5", "p1@t5", "p5@t1"]


def params(**evaluate: Any) -> RiseParams:
    values = profile("smoke")["rise"]
    values["evaluate"] |= evaluate
    return RiseParams.model_validate(values)


def solved(row: int, problem: int) -> float:
    """Row r solves the first 20 + 10r of 100 problems."""
    return float(problem < 20 + 10 * row)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    for number, row in enumerate(ROWS):
        folder = tmp_path / row
        folder.mkdir(parents=True)
        outcomes = [Outcome(id=f"p{i}", values=dict.fromkeys(COLUMNS, solved(number, i))) for i in range(100)]
        write_jsonl(folder / "outcomes.jsonl", outcomes[::-1] if number % 2 else outcomes)  # pairs are by id
        metric = mean_and_error(solved(number, i) for i in range(100))
        zero = {"mean": 0.0, "se": 0.0, "n": 100}
        metrics = {
            **dict.fromkeys(COLUMNS, metric), **{f"accuracy@t{t}": metric for t in range(1, 6)}, "m1@t5-m1@t1": zero,
            "p1@t5-m1@t1": zero, "p1@t5-p5@t1": zero, "right_to_wrong": zero, "wrong_to_right": zero,
        }  # fmt: skip
        (folder / "metrics.json").write_text(json.dumps(metrics))
        (folder / "train.json").write_text(json.dumps({"real_tokens": 1000 * number, "steps": number}))
    return tmp_path


def test_rows_are_base_controls_and_iterations_in_this_order_with_descriptions() -> None:
    rows = rise_rows(params())
    assert list(rows) == ROWS
    assert rows["iter1"] == "RISE from base, distilled from teacher"
    assert rows["iter2"] == "RISE from iter1, self-distilled"
    assert all("tokens of iter2" in rows[name] for name in ROWS[1:4])


def test_columns_follow_the_turn_and_sample_counts() -> None:
    assert headline(params()) == tuple(COLUMNS)
    assert headline(params(max_turns=3, parallel_samples=7)) == ("m1@t1", "m7@t1", "m1@t3", "p1@t3", "p7@t1")
    assert headline(params(max_turns=1)) == ("m1@t1", "m5@t1", "p5@t1")
    assert headline(params(oracle=True)) == (
        "m1@t1",
        "m5@t1",
        "p1@t5",
        "p5@t1",
    )  # no majority over turns that were not played
    assert headline(params(parallel_samples=1)) == ("m1@t1", "m1@t5", "p1@t5")


def test_the_summary_contains_every_row_s_metrics_and_paired_differences(results: Path) -> None:
    summary = summarise_rise(params(), results)
    assert (summary["order"], summary["columns"], summary["last"]) == (ROWS, COLUMNS, "iter2")
    for number, row in enumerate(ROWS):
        assert summary["rows"][row]["metrics"]["m1@t1"]["mean"] == pytest.approx(0.2 + 0.1 * number)
        assert summary["rows"][row]["training_tokens"] == 1000 * number
        assert summary["rows"][row]["training_steps"] == number
    assert list(summary["last_minus"]) == ROWS[:-1]
    for number, row in enumerate(ROWS[:-1]):
        differences = [solved(5, i) - solved(number, i) for i in range(100)]
        assert summary["last_minus"][row]["m1@t5"] == pytest.approx(mean_and_error(differences))


def test_rows_evaluated_on_different_splits_are_refused(results: Path) -> None:
    write_jsonl(results / "more_sft/outcomes.jsonl", [Outcome(id="other", values=dict.fromkeys(COLUMNS, 1.0))])
    with pytest.raises(UserError, match="evaluate both on the same split"):
        summarise_rise(params(), results)


def test_the_plot_s_table_has_one_line_per_row_and_turn(results: Path) -> None:
    table = turn_rows(summarise_rise(params(), results))
    assert [(line["row"], line["turn"]) for line in table] == [(row, t) for row in ROWS for t in range(1, 6)]
    assert table[-1]["accuracy"] == pytest.approx(0.7)


def test_with_an_oracle_tables_and_plots_show_the_share_solved_by_each_turn(results: Path, tmp_path: Path) -> None:
    for row in ROWS:
        file = results / row / "metrics.json"
        metrics = json.loads(file.read_text())
        kept = {name: metric for name, metric in metrics.items() if not name.startswith(("accuracy@", "m1@t5"))}
        solved_by = {f"p1@t{turn}": metrics["p1@t5"] for turn in range(2, 6)}
        file.write_text(json.dumps(kept | solved_by))
    summary = summarise_rise(params(oracle=True), results)
    assert summary["headline"] == "p1@t5"
    assert [line["turn"] for line in turn_rows(summary)] == [1, 2, 3, 4, 5] * len(ROWS)
    console = Console(width=200, record=True, file=StringIO())
    for table in (results_table("rise", summary), overview({"rise": summary})):
        console.print(table)
    assert "p1@t5" in console.export_text()
    draw({"rise": summary}, tmp_path / "report")
    assert (tmp_path / "report" / "rise-solved-by-turn-with-an-oracle.png").is_file()


def test_a_rate_without_any_chance_is_not_shown_as_zero(results: Path) -> None:
    """With an oracle, no attempt follows a right one, so that none can be followed by a wrong one."""
    for row in ROWS:
        file = results / row / "metrics.json"
        no_chance = {"mean": 0.0, "se": 0.0, "n": 0}
        file.write_text(json.dumps(json.loads(file.read_text()) | {"right_to_wrong": no_chance}))
    table = results_table("rise", summarise_rise(params(), results))
    cells = {str(column.header): list(column.cells) for column in table.columns}
    assert cells["r→w"] == ["-"] * len(ROWS)
    assert cells["w→r"] == ["0.00"] * len(ROWS)


def test_tables_show_standard_errors_and_mark_differences_beyond_three_of_them(results: Path, tmp_path: Path) -> None:

    summary = summarise_rise(params(), results)
    console = Console(width=200, record=True, file=StringIO())
    for table in (results_table("rise", summary), difference_table("rise", summary)):
        console.print(table)
    text = console.export_text()
    assert "n = 100" in text
    assert ".700±.046" in text  # iter2: the root of 0.7 * 0.3 / 99
    lines = [line for line in text.splitlines() if "base" in line and "±" in line]
    assert "+.500±.050*" in lines[-1]  # 10 standard errors


def test_control_characters_and_markup_in_a_summary_s_notes_are_shown_as_text(results: Path) -> None:
    summary, shown = summarise_rise(params(), results), StringIO()
    show(results_table("rise", {**summary, "note": "a [/] b\x1b[2J"}), Console(file=shown, width=200))
    assert "; a [/] b\\x1b[2J\n" in shown.getvalue()


def test_brackets_in_the_name_of_an_environment_are_shown(results: Path) -> None:
    summary, shown = summarise_rise(params(), results), StringIO()
    for row in summary["rows"].values():
        row["environments"] = {"rooms [easy] [/]": row["metrics"]}
    table = results_table("rise", summary)
    table.title = "arena: rooms [easy] [/]"
    show(table, Console(file=shown, width=200))
    assert shown.getvalue().count("rooms [easy] [/]") == 2


def test_omissions_have_a_column_only_if_there_are_any(results: Path) -> None:
    def printed() -> str:
        console = Console(width=300, record=True, file=StringIO())
        console.print(results_table("rise", summarise_rise(params(), results)))
        return console.export_text()

    def add(row: str, name: str, more: dict[str, Any]) -> None:
        file = results / row / name
        file.write_text(json.dumps((json.loads(file.read_text()) if file.is_file() else {}) | more))

    zero = mean_and_error([0.0] * 100)
    add("base", "metrics.json", {"blocked": zero, "shortened_prompts": zero, "cut_completions": zero})
    add("iter1", "generate.json", {"blocked": 0, "episodes": 100, "shortened_prompts": zero})
    add("iter1", "train.json", {"counters": {"examples": 40, "truncated": 0, "dropped_long": 0}})
    nothing = printed()
    assert not any(kind in nothing for kind in OMISSIONS)

    add("base", "metrics.json", {"shortened_prompts": mean_and_error([0.0] * 999 + [1.0])})
    add("iter1", "generate.json", {"blocked": 3})
    add("iter1", "train.json", {"counters": {"examples": 40, "truncated": 4, "dropped_long": 10}})
    text = printed()
    lines = {line.split()[0]: line for line in text.splitlines() if line.split()}
    assert all(f"{stage}:" in text for stage in ("generate", "finetune", "evaluate"))
    assert "0.1 %" in lines["base"]  # even a tiny share is not shown as zero
    assert "3 %" in lines["iter1"]
    assert "28 %" in lines["iter1"]  # 14 of 50
    assert "%" not in lines["iter2"]
    for kind in ("blocked", "shortened_prompts", "shortened_examples"):
        assert f"{kind}: {OMISSIONS[kind]}" in text
    assert "cut_completions" not in text
    add("iter2", "metrics.json", {"cut_completions": mean_and_error([1.0] * 100)})
    assert "100 %" in next(line for line in printed().splitlines() if line.startswith(" iter2"))


def test_a_plot_is_drawn_only_if_it_is_missing_damaged_or_outdated(results: Path, tmp_path: Path) -> None:
    summary, plot = summarise_rise(params(), results), tmp_path / "plots/rise-accuracy-by-turn.png"

    def drawn() -> int:
        draw({"rise": summary}, plot.parent)
        assert plot.read_bytes().startswith(b"\x89PNG")
        assert {path.name for path in plot.parent.iterdir()} == {plot.name, "rise-rows.png"}
        return plot.stat().st_ino

    first = drawn()
    assert drawn() == first
    summary["curve"]["points"][0]["accuracy"] += 0.1
    second = drawn()
    assert second != first
    plot.write_bytes(b"\x89PNG")
    assert drawn() != second
    assert len(plot.read_bytes()) > 1000


def test_summaries_of_methods_that_have_run_are_read_in_the_pipeline_s_order(results: Path, tmp_path: Path) -> None:
    summary = json.dumps(summarise_rise(params(), results))
    for method in ("agent_r", "rise", "spin"):
        write_text(tmp_path / SUMMARIES / f"{method}.json", summary)
    assert list(read_summaries([], tmp_path)) == ["rise", "agent_r", "spin"]
    assert read_summaries(["spin", "reflect_rl"], tmp_path) == {"spin": json.loads(summary)}


def test_the_overview_lists_every_row_with_its_headline_metric_and_the_last_row_minus_it(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(results)
    summary = summarise_rise(params(), results)
    assert summary["headline"] == "m1@t5"
    text = StringIO()
    Console(file=text, width=140).print(overview({"rise": summary, "other": summary}))
    lines = [line.split() for line in text.getvalue().splitlines() if "m1@t5" in line]
    assert [line[0] for line in lines] == ["rise"] * len(ROWS) + ["other"] * len(ROWS)
    assert [line[2] for line in lines[: len(ROWS)]] == ROWS
    for line, mean, difference in zip(
        lines[: len(ROWS)],
        (".200", ".300", ".400", ".500", ".600", ".700"),
        ("+.500±.050*", "+.400±.049*", "+.300±.046*", "+.200±.040*", "+.100±.030*", None),
        strict=True,
    ):
        assert f" {mean}±" in " ".join(line)
        assert [cell for cell in line if cell.startswith(("+", "-."))] == [difference] * (difference is not None)
    assert "(last)" in lines[len(ROWS) - 1]


@pytest.mark.parametrize("width", [60, 80, 100, 130, 200])
def test_at_any_width_lines_fit_and_no_cell_is_truncated(results: Path, width: int) -> None:
    summary = summarise_rise(params(), results)
    for table in (results_table("rise", summary), difference_table("rise", summary), overview({"rise": summary})):
        narrow = Console(width=width, file=StringIO(), record=True)
        parts = fitted(table, narrow)
        for part in parts:
            narrow.print(part)
        text = narrow.export_text()
        assert "…" not in text
        assert all(len(line.rstrip()) <= width for line in text.splitlines())
        cells = [str(cell) for column in table.columns for cell in [column.header, *column.cells] if str(cell).strip()]
        assert all(cell.strip() in text for cell in cells)
        assert all(str(column.header) in text for column in table.columns)
        assert len(parts) == 1 or width < 130
    assert len(fitted(results_table("rise", summary), Console(width=80, file=StringIO()))) == 2


def test_in_a_terminal_narrower_than_a_column_nothing_is_truncated(results: Path) -> None:
    summary = summarise_rise(params(), results)
    narrow = Console(width=16, file=StringIO(), record=True)
    show(difference_table("rise", summary), narrow)
    parts = fitted(difference_table("rise", summary), narrow)
    text = narrow.export_text()
    assert "…" not in text
    # Cells are folded, so their parts are on several lines; every character is printed, row names once per part.
    cells = [str(cell) for part in parts for column in part.columns for cell in (column.header, *column.cells)]
    title = str(difference_table("rise", summary).title)
    assert Counter("".join(text.split()).replace("─", "")) == Counter("".join("".join([title, *cells]).split()))
    assert all([str(cell) for cell in part.columns[0].cells] == ROWS[:-1] for part in parts)
    assert [str(column.header) for part in parts for column in part.columns[1:]] == COLUMNS


def test_plots_drawn_concurrently_are_complete(results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    summaries = {"rise": {**summarise_rise(params(), results)}}
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: draw(summaries, tmp_path / "report"), range(4)))
    drawn = [path.read_bytes() for path in (tmp_path / "report").iterdir()]
    assert drawn
    assert all(one.startswith(b"\x89PNG") and one.endswith(b"IEND\xaeB`\x82") for one in drawn)


def test_damaged_timings_are_left_out_of_the_table(results: Path, tmp_path: Path) -> None:
    for row, text in zip(ROWS, ["", "[]", "{}", '{"seconds": "x"}', "null", '{"seconds": 3.2}'], strict=True):
        write_text(tmp_path / TIMING / f"rise-finetune@{row}.json", text)
    table = results_table("rise", summarise_rise(params(), results), tmp_path)
    train = next(column for column in table.columns if column.header == "train")
    assert list(train.cells) == ["-", "-", "-", "-", "-", "3"]


@pytest.mark.parametrize("text", ["{}", '{"rows": {}}', "[]", "{torn"])
def test_the_error_names_a_damaged_summary_and_its_remedy(tmp_path: Path, text: str) -> None:
    write_text(tmp_path / SUMMARIES / "rise.json", text)
    with pytest.raises(UserError, match=r"rise\.json (is|holds) no.*; (run `make repro METHOD=rise`|restore)"):
        read_summaries([], tmp_path)


def test_a_control_that_matches_an_earlier_iteration_gives_a_warning(results: Path) -> None:
    fair = summarise_rise(params(), results)
    assert "unlike_last" not in fair
    assert "WARNING" not in str(results_table("rise", fair).caption)
    values = params().model_dump(mode="json")
    values["rows"]["single_turn"]["match"] = "iter1"
    summary = summarise_rise(RiseParams.model_validate(values), results)
    assert summary["unlike_last"] == {"single_turn": "iter1"}
    assert (
        "WARNING: single_turn has the training tokens of iter1, not of iter2 (last): unfair comparison; "
        "set rise.rows.single_turn.match: iter2"
    ) in str(results_table("rise", summary).caption)


def test_a_damaged_file_of_another_method_does_not_hide_a_method_s_table(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results/summary").mkdir(parents=True)
    write_json(tmp_path / "results/summary/rise.json", summarise_rise(params(), results))
    (tmp_path / "results/summary/spin.json").write_text("{")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["table", "rise"])
    table_command.main()
    out, err = capsys.readouterr()
    assert "rise: held-out split" in out
    assert err.startswith("the methods cannot be compared: results/summary/spin.json")
    assert err.count("\n") == 1


def test_rows_evaluated_again_after_the_summary_are_named(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results/summary").mkdir(parents=True)
    write_json(tmp_path / "results/summary/rise.json", summarise_rise(params(), results))
    for row in ROWS:
        shutil.copytree(results / row, tmp_path / "results/rise" / row)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["table"])
    table_command.main()
    assert capsys.readouterr().err == ""
    for row in ("single_turn", "iter2"):
        write_json(Path("results/rise", row, "metrics.json"), {"m1@t1": mean_and_error([1.0])})
    table_command.main()
    out, err = capsys.readouterr()
    assert "rise: held-out split" in out
    assert err == (
        "rise: single_turn, iter2 were evaluated again after the report stage, and the table has the earlier results; "
        "run `make repro METHOD=rise`.\n"
    )
    Path("results/rise/iter1/metrics.json").write_text("{")
    table_command.main()
    assert "results/rise/iter1/metrics.json is not JSON" in capsys.readouterr().err


def test_a_difference_that_is_the_same_for_every_task_is_beyond_its_error_but_one_task_is_not_evidence() -> None:
    assert signed_text({"mean": -1.0, "se": 0.0, "n": 100}, "em") == "-1.00±.000*"
    assert signed_text({"mean": -1.0, "se": 0.0, "n": 1}, "em") == "-1.00±.000 "
    assert signed_text({"mean": 0.0, "se": 0.0, "n": 100}, "em") == "+.000±.000 "
