"""The table printed at the end of ``make repro``, and the plots.

Figures come from ``results/summary/<method>.json``. Seconds and generated tokens come from the last run of each stage
(``.scratch/timing``); they differ from run to run and are therefore not in the summary.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from selfimprove.apps.report.arena import arena, arena_tables
from selfimprove.apps.report.charts import curve_chart, curves_of, rows_chart, write_png
from selfimprove.apps.report.schema import Summary, read_timing
from selfimprove.apps.report.words import figure_text, percent_text, rate_text, signed_text
from selfimprove.core.cli import one_sentence
from selfimprove.core.errors import UserError, fault, first_line, for_terminal
from selfimprove.core.records import load_object, read_object
from selfimprove.methods.omissions import OMISSIONS
from selfimprove.methods.summary import headline
from selfimprove.pipeline.lock import LOCKS, in_turn
from selfimprove.pipeline.params import METHODS
from selfimprove.pipeline.recorded import SUMMARIES

STAGES = ("generate", "convert", "finetune", "evaluate")
OUT = Path("report")


@one_sentence()
def main() -> None:
    """Print the tables of the methods given as arguments, or of all methods with results; draw the plots."""
    summaries = read_summaries(sys.argv[1:])
    if not summaries:
        print("no results yet; run `make repro`.", file=sys.stderr)
        sys.exit(2)
    console = in_console()
    tables = [table for method, summary in summaries.items() for table in (
        results_table(method, summary), difference_table(method, summary),
    )]  # fmt: skip
    draw(summaries, OUT)
    if len(summaries) > 1:
        tables.append(overview(summaries))
    for table in tables:
        show(table, console)
    try:
        compared = arena(Path(), read_summaries())
    except (OSError, UserError) as error:  # in the results of another method
        print(f"the methods cannot be compared: {first_line(error)}", file=sys.stderr)
    else:
        for table in arena_tables(compared) if compared else ():
            show(table, console)
    for method, summary in summaries.items():
        tell_if_outdated(method, summary)
    console.print(f"plots: {OUT}/*.png; all metrics: {SUMMARIES}/<method>.json, results/<method>/<row>/metrics.json")


def read_summaries(methods: Sequence[str] = (), root: Path = Path()) -> dict[str, Any]:
    """Method -> its summary in the run in ``root``, for the given methods (none: all) that have been run.

    They are in the order of ``METHODS``.

    Raises:
        UserError: a summary is damaged.
    """
    files = {method: root / SUMMARIES / f"{method}.json" for method in METHODS if method in methods or not methods}
    found = {method: read_object(file) for method, file in files.items() if file.is_file()}
    for method, summary in found.items():
        try:
            Summary.model_validate(summary)
        except ValidationError as error:
            raise UserError(
                f"{files[method]} is not a summary of a run ({fault(error)}); run `make repro METHOD={method}`."
            ) from None
    return found


def tell_if_outdated(method: str, summary: dict[str, Any]) -> None:
    """Report on stderr which rows of a summary were evaluated again after it was written."""
    try:
        files = {name: Path("results", method, name, "metrics.json") for name in summary["order"]}
        rows = [name for name, file in files.items() if differ(summary["rows"][name]["metrics"], load_object(file))]
    except UserError as error:
        print(first_line(error), file=sys.stderr)
        return
    if rows:
        print(
            f"{method}: {', '.join(rows)} were evaluated again after the report stage, and the table has the earlier "
            f"results; run `make repro METHOD={method}`.",
            file=sys.stderr,
        )


def differ(summarised: Mapping[str, Any], metrics: Mapping[str, Any]) -> bool:
    """Whether a row's ``metrics.json`` has other values than its summary, which a rerun replaces later."""
    return any(summarised.get(key) != value for key, value in metrics.items())


def results_table(method: str, summary: dict[str, Any], root: Path = Path()) -> Table:
    """Rows x metrics, mean ± standard error; the gains within a row; and each row's cost in the run in ``root``."""
    columns, order, rows = summary["columns"], summary["order"], summary["rows"]
    gains, rates = summary["gains"], summary["rates"]
    first = rows[order[0]]["metrics"]
    table = Table(
        title=f"{method}: held-out split, n = {first[columns[0]]['n']}, mean ± standard error",
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
    )
    table.add_column("row", no_wrap=True)
    # Omissions (blocked, cut or left out) have a column only if there are any.
    left_out = [
        (stage, kind)
        for stage in STAGES
        for kind in OMISSIONS
        if any(_omitted(row, stage, kind) for row in rows.values())
    ]
    headings = [f"{stage}:\n{kind}" for stage, kind in left_out]
    metric, mixed = headline(summary), rows[order[0]].get("environments", {})
    each = [f"{metric}\n{name}" for name in mixed]
    for column in (*columns, *each, *gains, *rates.values(), *headings, "tokens", "train", "eval"):
        table.add_column(column, justify="right", no_wrap=True)
    for name in order:
        metrics = rows[name]["metrics"]
        cells = [figure_text(metrics[column], column) for column in columns]
        cells += [figure_text(rows[name]["environments"][one][metric], metric) for one in mixed]
        cells += [signed_text(metrics[gain], gain) if gain in metrics else "-" for gain in gains]
        cells += [rate_text(metrics.get(key)) for key in rates]
        cells += [percent_text(_omitted(rows[name], stage, kind)) for stage, kind in left_out]
        cells += [f"{rows[name]['training_tokens'] / 1000:.0f}k", *seconds_of(method, name, root)]
        table.add_row(name, *cells)
    notes = [f"{name}: {rows[name]['what']}" for name in order]
    notes.append(
        "tokens: training tokens (tokens of X: as many as X and the rows between the base and X together); "
        "train, eval: seconds of the stage (-: not recorded)"
    )
    notes.append("*: more than three standard errors from 0" + (f"; {summary['note']}" if summary["note"] else ""))
    notes += [f"{kind}: {said}" for kind, said in OMISSIONS.items() if any(kind == one for _, one in left_out)]
    for name, match in summary.get("unlike_last", {}).items():
        notes.append(
            f"WARNING: {name} has the training tokens of {match}, not of {summary['last']} (last): unfair comparison; "
            f"set {method}.{'models' if method == 'reflect_rl' else 'rows'}.{name}.match: {summary['last']}"
        )
    table.caption = "\n".join(notes)
    return table


def _omitted(row: dict[str, Any], stage: str, kind: str) -> float:
    return float(row.get("omissions", {}).get(stage, {}).get(kind, 0.0))


def in_console() -> Console:
    """A console as wide as the terminal, or 130 columns wide without one."""
    return Console(width=None if sys.stdout.isatty() or "COLUMNS" in os.environ else 130)


def show(table: Table, console: Console) -> None:
    """Print a table that fits the console, without markup; title and notes have the console's width, not that of the
    last part.
    """
    if table.title:
        console.print(_literal(table.title, "table.title"))
    for part in fitted(table, console):
        console.print(part)
    if table.caption:
        console.print(_literal(table.caption, "table.caption"))


def _literal(text: object, style: str = "") -> Text:
    return Text(for_terminal(str(text)), style=style)


def fitted(table: Table, console: Console) -> list[Table]:
    """The table itself if the console is wide enough, else its columns split into several tables, without title and
    notes.

    The leading columns that are not right-aligned identify a row; each part repeats them. Nothing is truncated: if a
    single column is too wide, its cells wrap.
    """
    named = next((place for place, column in enumerate(table.columns) if column.justify == "right"), 1)
    parts: list[list[Column]] = [[]]
    for column in table.columns[named:]:
        if parts[-1] and _width(_part(table, [*table.columns[:named], *parts[-1], column]), console) > console.width:
            parts.append([])
        parts[-1].append(column)
    made = [_part(table, [*table.columns[:named], *columns]) for columns in parts]
    for part in made:
        if _width(part, console) > console.width:
            for column in part.columns:
                column.no_wrap, column.overflow = False, "fold"
    return made


def _part(table: Table, columns: Sequence[Column]) -> Table:
    part = Table(box=table.box, padding=table.padding)
    for column in columns:
        part.add_column(_literal(column.header), justify=column.justify, no_wrap=True)
    for row, cells in zip(table.rows, zip(*(column.cells for column in columns), strict=True), strict=True):
        part.add_row(*map(_literal, cells), end_section=row.end_section)
    return part


def _width(table: Table, console: Console) -> int:
    return Measurement.get(console, console.options.update(width=1 << 12), table).maximum


def overview(summaries: dict[str, Any], root: Path = Path()) -> Table:
    """All methods in one table: each row's headline metric, the last row minus it, and what the row cost."""
    table = Table(title="all methods", box=box.SIMPLE, padding=(0, 1, 0, 0))
    for column in ("method", "metric", "row"):
        table.add_column(column, no_wrap=True)
    for column in ("mean ± se", "n", "Δ (last − row)", "tokens", "train", "eval"):
        table.add_column(column, justify="right", no_wrap=True)
    for method, summary in summaries.items():
        metric = headline(summary)
        for name in summary["order"]:
            row, difference = summary["rows"][name], summary["last_minus"].get(name)
            table.add_row(
                method, metric, name + (" (last)" if difference is None else ""),
                figure_text(row["metrics"][metric], metric), str(row["metrics"][metric]["n"]),
                "" if difference is None else signed_text(difference[metric], metric),
                f"{row['training_tokens'] / 1000:.0f}k", *seconds_of(method, name, root),
                end_section=name == summary["order"][-1],
            )  # fmt: skip
    return table


def difference_table(method: str, summary: dict[str, Any]) -> Table:
    """The last iteration minus every other row, over the same tasks; * marks more than three standard errors."""
    title = f"{method}: {summary['last']} minus each other row, paired"
    table = Table(title=title, box=box.SIMPLE)
    table.add_column("row")
    for column in summary["columns"]:
        table.add_column(column, justify="right")
    for name in summary["order"]:
        if name in summary["last_minus"]:
            figures = summary["last_minus"][name]
            table.add_row(name, *(signed_text(figures[column], column) for column in summary["columns"]))
    return table


def draw(summaries: dict[str, Any], folder: Path) -> None:
    """Draw a PNG of each method's rows and of each of its curves; files that show the same chart are not rewritten."""
    with in_turn(LOCKS / "plots", f"another process is drawing the plots in {folder}; waiting"):
        for method, summary in summaries.items():
            write_png(rows_chart(method, summary), folder / f"{method}-rows.png")
            for curve in curves_of(summary):
                name = f"{method}-{curve['title'].replace(' ', '-')}.png"
                write_png(curve_chart(method, curve, summary["solid"]), folder / name)


def seconds_of(method: str, row: str, root: Path) -> tuple[str, str]:
    """Seconds of a row's training and evaluation in their last run in ``root``; "-" if they were restored."""
    found = []
    for steps in (("finetune", "reinforce"), ("evaluate", "agent")):
        timings = (read_timing(root, f"{method}-{step}@{row}") for step in steps)
        seconds = next((one["seconds"] for one in timings if "seconds" in one), None)
        found.append("-" if seconds is None else f"{seconds:.0f}")
    return found[0], found[1]


if __name__ == "__main__":
    main()
