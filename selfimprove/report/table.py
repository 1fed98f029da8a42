"""The table that ends ``make repro``, and the plots beside it.

Figures come from ``results/summary.json``; seconds and generated tokens from the last run of each stage
(``.scratch/timing``), which is why they are not in the summary: they differ from run to run.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

SUMMARY = Path("results/summary.json")
TIMING = Path(".scratch/timing")
OUT = Path("report")


def main() -> None:
    """Print the tables; draw the plots into ``report/``."""
    if not SUMMARY.is_file():
        print("no results yet; run `make repro`.", file=sys.stderr)
        sys.exit(2)
    console = Console(width=None if sys.stdout.isatty() else 118)
    for method, summary in json.loads(SUMMARY.read_text(encoding="utf-8")).items():
        console.print(results_table(method, summary))
        console.print(difference_table(method, summary))
    draw(json.loads(SUMMARY.read_text(encoding="utf-8")), OUT)
    console.print(f"plots: {OUT}/*.png; in full: results/summary.json, results/<method>/<row>/metrics.json")


def results_table(method: str, summary: dict[str, Any]) -> Table:
    """Rows x metrics, mean ± standard error, the gain over turns, and what a row cost."""
    columns, order, rows = summary["columns"], summary["order"], summary["rows"]
    first = rows[order[0]]["metrics"]
    gains = [name for name in first if name.endswith("-m1@t1")]
    table = Table(
        title=f"{method}: held-out panel, n = {first[columns[0]]['n']}, mean ± standard error",
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
    )
    table.title_justify = table.caption_justify = "left"
    table.add_column("row", no_wrap=True)
    for column in (*columns, *gains, "r→w", "w→r", "tokens", "train", "eval"):
        table.add_column(column, justify="right", no_wrap=True)
    for name in order:
        metrics = rows[name]["metrics"]
        cells = [_figure(metrics[column]) for column in columns] + [_signed(metrics[gain]) for gain in gains]
        cells += [f"{metrics[key]['mean']:.2f}" for key in ("right_to_wrong", "wrong_to_right")]
        cells += [f"{rows[name]['training_tokens'] / 1000:.0f}k", *_seconds(method, name)]
        table.add_row(name, *cells)
    notes = [f"{name}: {rows[name]['what']}" for name in order]
    notes.append("tokens: read in training; train, eval: seconds of the stage, - if it was restored")
    notes.append("* more than 3 standard errors from 0; r→w, w→r: right attempts followed by a wrong one, and back")
    table.caption = "\n".join(notes)
    return table


def difference_table(method: str, summary: dict[str, Any]) -> Table:
    """The last iteration minus every other row, over the same problems; * marks more than three standard errors."""
    table = Table(title=f"{method}: {summary['last']} minus each other row, paired", box=box.SIMPLE)
    table.title_justify = "left"
    table.add_column("minus")
    for column in summary["columns"]:
        table.add_column(column, justify="right")
    for name in summary["order"]:
        if name in summary["last_minus"]:
            figures = summary["last_minus"][name]
            table.add_row(name, *(_signed(figures[column]) for column in summary["columns"]))
    return table


def draw(summaries: dict[str, Any], folder: Path) -> None:
    """One PNG a method: accuracy by turn for every row, with error bars."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(exist_ok=True)
    for method, summary in summaries.items():
        figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
        for name in summary["order"]:
            row = summary["rows"][name]
            turns = sorted(int(key[10:]) for key in row["metrics"] if key.startswith("accuracy@t"))
            points = [row["metrics"][f"accuracy@t{turn}"] for turn in turns]
            solid = row["what"].startswith("RISE")
            axes.errorbar(
                turns, [p["mean"] for p in points], [p["se"] for p in points],
                label=name, marker="o", linestyle="-" if solid else "--", linewidth=2 if solid else 1,
            )  # fmt: skip
        axes.set(xlabel="turn", ylabel="attempt correct", title=f"{method}: accuracy by turn", ylim=(0, 1))
        axes.set_xticks(turns)
        axes.legend(fontsize=8)
        figure.savefig(folder / f"{method}-accuracy-by-turn.png", dpi=130)
        pyplot.close(figure)


def _figure(figure: dict[str, float]) -> str:
    return f"{_short(figure['mean'])}±{_short(figure['se'])}"


def _signed(figure: dict[str, float]) -> str:
    mark = "*" if figure["se"] and abs(figure["mean"]) > 3 * figure["se"] else " "
    sign = "-" if figure["mean"] < 0 else "+"
    return f"{sign}{_short(abs(figure['mean']))}±{_short(figure['se'])}{mark}"


def _short(share: float) -> str:
    return f"{share:.3f}".lstrip("0") if share < 0.9995 else f"{share:.2f}"


def _seconds(method: str, row: str) -> tuple[str, str]:
    """Seconds that training and evaluating a row took when last run here; "-" if they were restored."""
    found = []
    for step in ("finetune", "evaluate"):
        # One script serves base, iterations and controls, and names its run after the script and the row.
        path = TIMING / f"{method}-{step}@{row}.json"
        found.append(f"{json.loads(path.read_text())['seconds']:.0f}" if path.is_file() else "-")
    return found[0], found[1]


if __name__ == "__main__":
    main()
