"""The tables of the page, cell by cell those of `make repro`, and their export to CSV and LaTeX."""

import csv
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from selfimprove.apps.page import episodes
from selfimprove.apps.page.run import Run
from selfimprove.apps.report.arena import arena as compare_methods
from selfimprove.apps.report.arena import arena_tables
from selfimprove.apps.report.charts import own_rows
from selfimprove.apps.report.table import difference_table, overview, results_table
from selfimprove.apps.report.words import figure_text, method_name, metric_name, row_name
from selfimprove.core.errors import UserError, first_line
from selfimprove.methods.omissions import OMISSIONS

Summaries = Mapping[str, dict[str, Any]]


@dataclass
class Plain:
    """A table as text. ``head``: (heading, numeric column); ``own``: whether each row belongs to the method itself."""

    title: str
    head: list[tuple[str, bool]]
    rows: list[list[str]]
    own: list[bool]
    notes: list[str]


def results(method: str, summary: dict[str, Any], root: Path) -> Plain | None:
    """Rows by metrics; None if no row has been measured yet."""
    if not summary["order"] or not summary["columns"]:
        return None
    return _plain(results_table(method, summary, root), method, summary)


def differences(method: str, summary: dict[str, Any]) -> Plain | None:
    """The method's last row minus every other one, paired; None while nothing can be compared."""
    if not summary["last_minus"]:
        return None
    found = _plain(difference_table(method, summary), method, summary)
    found.title = f"{row_name(method, summary['last'])} minus each other row, paired by task"
    return found


def levels(run: Run, method: str, summary: dict[str, Any]) -> list[Plain]:
    """Reflect-RL by curriculum level: held-out metrics of rows measured at several levels, and reinforcement."""
    measured, learnt = [], []
    for name in summary["order"]:
        there = summary["rows"][name]["metrics"].get("levels", {})
        measured += [
            [row_name(method, name), level, *(figure_text(one[key], key) for key in ("success", "cost")),
             str(one["episodes"])] for level, one in there.items() if len(there) > 1
        ]  # fmt: skip
    for name in run.rows(method):
        by_level: dict[str, list[Mapping[str, Any]]] = {}
        for _, line in episodes.lines(run, run.root / "results" / method / name / "log.jsonl"):
            if "log" in line:
                by_level.setdefault(str(line.get("level", "")), []).append(line)
        for level, lines in by_level.items():
            success, cost = [[one[key] for one in lines if one.get(key) is not None] for key in ("succ", "cost")]
            means = [f"{sum(values) / len(values):.3f}" if values else "-" for values in (success[-1:], success, cost)]
            learnt.append(
                [row_name(method, name), level or "all", f"{lines[0]['iter']} to {lines[-1]['iter']}", *means]
            )
    heads = ["success", "cost", "episodes"], ["rounds", "success, last round", "mean success", "mean cost"]
    titles = "Held-out split by level", "Reinforcement learning by level"
    names = [("row", False), ("level", False)]
    return [
        Plain(title, names + [(text, True) for text in head], rows, [False] * len(rows), [])
        for title, head, rows in zip(titles, heads, (measured, learnt), strict=True)
        if rows
    ]


def all_methods(summaries: Summaries, root: Path) -> Plain | None:
    """Every row's headline metric."""
    whole = {name: one for name, one in summaries.items() if one["order"] and one["columns"]}
    if not whole:
        return None
    table = _cells(overview(whole, root))
    table.title = "Headline metric of every row"
    own = []
    for row in table.rows:
        name = row[2].removesuffix(" (last)")
        own.append(name in own_rows(row[0], whole[row[0]]))
        row[2] = row_name(row[0], name) + row[2][len(name) :]
        row[0], row[1] = method_name(row[0]), metric_name(row[1])
    table.own = own
    return table


def arena(run: Run) -> list[Plain]:
    """The comparison of methods that share their test tasks; [] if there are none or a file is missing."""
    whole = {method: one for method, one in run.summaries.items() if one["last"] is not None}
    try:
        found = compare_methods(run.root, whole)
    except FileNotFoundError:  # an unfinished run
        return []
    except (OSError, UserError) as error:
        run.tell(f"the methods cannot be compared: {first_line(error)}")
        return []
    return [_cells(table) for table in arena_tables(found)] if found else []


def _plain(table: Table, method: str, summary: Mapping[str, Any]) -> Plain:
    found = _cells(table)
    found.own = [row[0] in own_rows(method, summary) for row in found.rows]
    found.title = re.sub(r"\w+", lambda word: _word(method, word[0], summary), found.title)
    found.head = [(_in_words(method, text, summary).replace(": ", ":\n"), number) for text, number in found.head]
    described = [note for note in found.notes if not note.endswith(": ")]  # a row of an unfinished run is not
    found.notes = [_worded(method, note, summary) for note in described]
    for row in found.rows:
        row[0] = row_name(method, row[0])
    return found


def _word(method: str, word: str, summary: Mapping[str, Any]) -> str:
    return method_name(word) if word == method else row_name(method, word) if word in summary["order"] else word


def _worded(method: str, note: str, summary: Mapping[str, Any]) -> str:
    """A note with rows and metrics by name; the setting that a warning recommends keeps its keys."""
    said, mark, setting = note.partition("; set ")
    name, colon, rest = said.partition(":")
    name = row_name(method, name) if name in summary["order"] else _in_words(method, name, summary)
    return f"{name}{colon}{_in_words(method, rest, summary)}{mark}{setting}"


def _in_words(method: str, text: str, summary: Mapping[str, Any]) -> str:
    """A text with row and metric names in place of keys such as ``iter2`` and ``revision_score``."""
    metrics = {*summary["columns"], *summary["gains"], *summary["rates"], *OMISSIONS}

    def word(found: re.Match[str]) -> str:
        key = found[0]
        if key in metrics:
            return metric_name(key)
        return row_name(method, key) if key in summary["order"] and re.search(r"[_\d]", key) else key

    return re.sub(r"\w+", word, text)


def _cells(table: Table) -> Plain:
    head = [(str(column.header), column.justify == "right") for column in table.columns]
    rows = [[str(cell) for cell in cells] for cells in zip(*(column.cells for column in table.columns), strict=True)]
    notes = str(table.caption).splitlines() if table.caption else []
    return Plain(str(table.title or ""), head, rows, [False] * len(rows), notes)


def as_csv(summaries: Summaries) -> str:
    """One line per method, row and metric: mean, standard error, n, and the last row's paired difference to the row."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["method", "row", "metric", "mean", "se", "n", "last_minus_row", "last_minus_row_se"])
    for method, summary in summaries.items():
        for name in summary["order"]:
            for metric, value in summary["rows"][name]["metrics"].items():
                if isinstance(value, dict) and {"mean", "se", "n"} <= value.keys():
                    gain = summary["last_minus"].get(name, {}).get(metric, {})
                    cells = [value["mean"], value["se"], value["n"], gain.get("mean", ""), gain.get("se", "")]
                    writer.writerow([method, name, metric, *cells])
    return out.getvalue()


def as_latex(table: Plain, label: str) -> str:
    """A LaTeX table (booktabs): every cell is escaped, ± and * are set in math mode."""
    columns = "".join("r" if number else "l" for _, number in table.head)
    head = " & ".join(_latex(text) for text, _ in table.head)
    rows = "\n".join("  " + " & ".join(_latex(cell) for cell in row) + r" \\" for row in table.rows)
    return (
        "% \\usepackage{booktabs}\n\\begin{table}\n  \\centering\n"
        f"  \\caption{{{_latex(table.title)}}}\n  \\label{{tab:{label}}}\n"
        f"  \\begin{{tabular}}{{{columns}}}\n  \\toprule\n  {head} \\\\\n  \\midrule\n{rows}\n"
        "  \\bottomrule\n  \\end{tabular}\n\\end{table}\n"
    )


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "−": "$-$", "Δ": r"$\Delta$",
    "→": r"$\rightarrow$", "*": r"$^{*}$",
}  # fmt: skip


def _latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text.strip())
