"""Writes the report: one HTML page per view, its data in chunks, and tables to download.

The report is built in a temporary folder and moved into place when it is complete, so that readers of the old report
never see half of the new one.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import distribution
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from ruamel.yaml import YAML

from selfimprove.apps.page import compare, figures, graph, pairs, provenance, tables, trees
from selfimprove.apps.page.chunks import write_chunk
from selfimprove.apps.page.library import Library, write_library
from selfimprove.apps.page.run import Run
from selfimprove.apps.page.scores import Scorer, Wanted
from selfimprove.apps.page.tables import Plain
from selfimprove.apps.report.charts import VEGA_LITE
from selfimprove.apps.report.table import figure_text, signed_text
from selfimprove.apps.report.words import method_name, metric_name, row_name
from selfimprove.core.errors import UserError
from selfimprove.core.outcomes import beyond
from selfimprove.core.publish import publish
from selfimprove.methods.summary import headline
from selfimprove.pipeline.lock import LOCKS, in_turn
from selfimprove.pipeline.params import METHODS

HERE = Path(__file__).parent
OUT = Path("report")
ASIDE = ".page-"
"""Prefix of the folder in which a report is built."""

VIEWS = [
    ("index.html", "Overview"),
    *((f"{method}.html", method_name(method)) for method in METHODS),
    ("episodes.html", "Episodes"),
    ("trees.html", "Trees"),
    ("pairs.html", "Pairs"),
    ("compare.html", "Compare"),
]
LIVE = ("live.html", "Live")
PARTS = ("assets", "data", "tables", *(view for view, _ in (*VIEWS, LIVE)))
MARK = Path("assets/page.js")
"""A file that every folder with a page has."""

IDEAS = {
    "rise": "Several attempts at a problem with feedback after each; reward-weighted training on improved attempts.",
    "agent_r": "Tree search; finds the first error of a failed trajectory and learns to recover from there.",
    "reflect_rl": "A frozen model reflects on the state; a policy acts and learns by reinforcement along a curriculum.",
    "spin": "Self-play: learns to prefer the expert's trajectory to the one from its previous iteration.",
}


@dataclass(frozen=True)
class Built:
    """The files written, and the problems found while reading."""

    files: list[Path]
    problems: list[str]


def build(
    root: Path, out: Path, logprobs: Wanted = "auto", *, compare_with: Sequence[str] = (), live: bool = False
) -> Built:
    """Write the report of the run in ``root`` to ``out``; files in ``out`` that are not part of a report are kept.

    Args:
        compare_with: folders, commits or experiments; if empty, those that ``compare.others`` finds.
        live: include the view that ``make watch`` serves.

    Raises:
        UserError: a run in ``compare_with`` does not exist, or ``out`` cannot be used, see ``_made``.
    """
    run = Run(root)
    turn = in_turn(LOCKS / "page", f"another process is writing the page in {out}; waiting")
    with turn, TemporaryDirectory(prefix=ASIDE, dir=_without_remains(_made(out))) as aside:
        folder = Path(aside) / "page"
        (folder / "data").mkdir(parents=True)
        (folder / "tables").mkdir()
        _assets(folder / "assets")
        _Report(run, folder, logprobs, compare.others(run, compare_with), live).write()
        files = []
        for entry in sorted(folder.iterdir(), key=lambda path: (path.suffix == ".html", path.name)):
            publish(entry, out / entry.name)
            files.append(out / entry.name)
    return Built(files, run.problems)


def _without_remains(folder: Path) -> Path:
    """The folder, without leftovers of killed processes. The lock must be held."""
    for left in folder.glob(f"{ASIDE}*"):
        shutil.rmtree(left, ignore_errors=True)
    return folder


def _made(folder: Path) -> Path:
    """Create the folder of a page.

    Raises:
        UserError: the folder has something else with the name of a part of the page, or cannot be created.
    """
    if folder != OUT and not (folder / MARK).is_file():  # a killed process may have left half of a page in report/
        for name in PARTS:
            if (folder / name).exists() or (folder / name).is_symlink():
                raise UserError(
                    f"--out {folder}: the page would replace {name} there; delete it, or name another folder."
                )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {folder}: no folder can be made there ({error.strerror}); name another.") from None
    return folder


def environment() -> Environment:
    """The template environment; it escapes every value."""
    return Environment(
        loader=PackageLoader("selfimprove.apps.page"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip


def write_live(out: Path) -> None:
    """Write only the live view, for a run whose report has not been built yet.

    Raises:
        UserError: ``out`` cannot be used, see ``_made``.
    """
    with TemporaryDirectory(prefix=ASIDE, dir=_made(out)) as aside:
        folder = Path(aside)
        if not (out / MARK).is_file():
            _assets(folder / "assets")
        _write_view(environment(), folder, *LIVE, views=[*VIEWS, LIVE], charts="", connect="'self'")
        for entry in sorted(folder.iterdir()):  # the assets first
            publish(entry, out / entry.name)


def _write_view(templates: Environment, folder: Path, view: str, title: str, **values: Any) -> None:
    text = templates.get_template(values.pop("template", view)).render(view=view, title=title, **values)
    (folder / view).write_text(text, encoding="utf-8", errors="replace")


class _Report:
    """The views of one run."""

    def __init__(self, run: Run, folder: Path, logprobs: Wanted, others: Sequence[compare.Other], live: bool) -> None:
        self.logprobs, self.others = logprobs, others
        self.views = [*VIEWS, LIVE] if live else VIEWS
        self.run, self.folder, self.templates = run, folder, environment()
        self.summaries = run.summaries
        self.stages = graph.stages(run)

    def write(self) -> None:
        """Write all views. The overview comes last: only then have all files been read and all problems been found."""
        data, scorer = self.folder / "data", Scorer(self.run, self.stages, self.logprobs)
        trained = graph.trained_on(self.stages)
        libraries = {
            method: write_library(self.run, method, data, scorer.extend, trained) for method in self.run.methods
        }
        for method in libraries:
            scorer.write_vocabulary(method, data)
        for method in METHODS:
            self._method(method, libraries.get(method))
        with_episodes = [(name, method_name(name)) for name, one in libraries.items() if one.sets]
        self._view("episodes.html", "Episodes", libraries=with_episodes)
        self._view("trees.html", "Trees", {"tree": trees.drawing()}, iterations=trees.write_trees(self.run, data))
        sets = pairs.write_pairs(self.run, data, scorer.margin, trained)
        can_have = any(key.endswith(pairs.TRAINED) for key, _ in sets)
        self._view("pairs.html", "Pairs", sets=sets, unscored=can_have and not scorer.scored, logprobs=self.logprobs)
        self._view("compare.html", "Compare", runs=[compare.shown(self.run, other) for other in self.others])
        if self.views is not VIEWS:
            self._view(*LIVE, connect="'self'")
        self._overview()

    def _view(self, view: str, title: str, charts: Mapping[str, Any] | None = None, **values: Any) -> None:
        name = f"charts-{view.removesuffix('.html')}"
        if charts:
            write_chunk(self.folder / "data", name, charts)
        shown = {"views": self.views, "charts": name if charts else "", "connect": "'none'", **values}
        _write_view(self.templates, self.folder, view, title, **shown)

    def _overview(self) -> None:
        run, summaries = self.run, self.summaries
        table = tables.all_methods(summaries, run.root)
        charts = {f"rows-{method}": chart for method in summaries if (chart := figures.rows(run, method))}
        drawn = [(method, method_name(method)) for method in summaries if f"rows-{method}" in charts]
        graphs = graph.graph_charts(self.stages)
        charts |= {f"graph-{method}": {**chart, "wide": True, "quiet": True} for method, chart in graphs.items()}
        (self.folder / "tables" / "results.csv").write_text(tables.as_csv(summaries), encoding="utf-8")
        if table:
            (self.folder / "tables" / "all-methods.tex").write_text(
                tables.as_latex(table, "all-methods"), encoding="utf-8"
            )
        shared = [stage for stage in self.stages if not stage.method]
        groups = [(method_name(name), [one for one in self.stages if one.method == name]) for name in METHODS]
        self._view(
            "index.html", "Overview", charts, profile=provenance.profile(run), summaries=summaries,
            methods_known=len(METHODS), problems=run.problems, missing=graph.missing(self.stages), stages=self.stages,
            claims=[claim for method in summaries if (claim := _claim(method, summaries[method], run))], table=table,
            arena=tables.arena(run),
            charted=drawn, papers=_papers(), facts=provenance.facts(run), own_params=provenance.own_params(run),
            graphed=[(method, method_name(method)) for method in graphs],
            grouped=[(name, group) for name, group in [*groups, ("shared", shared)] if group],
            anchors={stage.name: stage.anchor for stage in self.stages},
        )  # fmt: skip

    def _method(self, method: str, library: Library | None) -> None:
        name, summary = method_name(method), self.summaries.get(method)
        results = differences = None
        charts: dict[str, Any] = {}
        sections: list[tuple[str, list[tuple[str, str]]]] = []
        by_level: list[Plain] = []
        downloads = []
        if summary:
            by_level = tables.levels(self.run, method, summary)
            results, differences = tables.results(method, summary, self.run.root), tables.differences(method, summary)
            for kind, table in (("results", results), ("differences", differences)):
                if table:
                    file = f"tables/{method}-{kind}.tex"
                    (self.folder / file).write_text(tables.as_latex(table, f"{method}-{kind}"), encoding="utf-8")
                    downloads.append(file)
            for heading, group in figures.sections(self.run, method, library):
                charts |= {key: spec for key, _, spec in group}
                sections.append((heading, [(key, text) for key, text, _ in group]))
        links = [
            (one["label"], f"episodes.html#method={method}&set={one['name']}")
            for one in (library.sets if library else [])
        ]
        self._view(
            f"{method}.html", name, charts, template="method.html", name=name, idea=IDEAS.get(method, ""),
            partial=bool(summary and summary.get("partial")), results=results, differences=differences,
            levels=by_level, downloads=downloads, sections=sections, links=links,
        )  # fmt: skip


def _claim(method: str, summary: Mapping[str, Any], run: Run) -> dict[str, Any] | None:
    """A method's headline result: the last row's metric, its differences to base and controls, and their evidence."""
    last = summary["last"]
    if last is None or last not in summary["rows"]:
        return None
    metric = headline(summary)
    measured = summary["rows"][last]["metrics"][metric]
    lines = []
    for name, gains in summary["last_minus"].items():
        gain = gains[metric]
        sure = beyond(gain)
        sign = ("up" if gain["mean"] > 0 else "down") if sure else "level"
        lines.append(
            {"delta": signed_text(gain, metric).strip(), "text": f"vs. {row_name(method, name)}", "sign": sign}
        )
    known = run.run_param("seed")
    seed = "unknown" if known is None else known
    return {
        "method": method_name(method), "file": f"{method}.html", "value": figure_text(measured, metric),
        "metric": metric_name(metric), "row": row_name(method, last), "lines": lines,
        "rests": f"{measured['n']} held-out tasks, paired; one run, seed {seed}. *: more than three standard errors.",
    }  # fmt: skip


def _papers() -> list[Plain]:
    found = YAML(typ="safe").load((HERE / "papers.yaml").read_text(encoding="utf-8"))
    return [
        Plain(one["title"], [(head, place > 0) for place, head in enumerate(one["head"])], one["rows"],
              [False] * len(one["rows"]), [f"Source: {one['source']}."])
        for one in found.values()
    ]  # fmt: skip


def _assets(folder: Path) -> None:
    """Scripts, styles, and the libraries that draw charts, with their licences."""
    shutil.copytree(HERE / "static", folder)
    (folder / "vega.js").write_text(_libraries(), encoding="utf-8")
    texts = [f"{HERE.joinpath('licences.txt').read_text(encoding='utf-8')}\n"]
    package = distribution("vl-convert-python")
    for file in package.files or []:
        if "licenses/" in str(file):
            path = Path(str(package.locate_file(file)))
            texts.append(f"---- vl-convert, {path.name}\n\n{path.read_text(encoding='utf-8')}\n")
    (folder / "LICENSES.txt").write_text("".join(texts), encoding="utf-8")


@cache
def _libraries() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script that defines only the global ``vegaEmbed``."""
    from vl_convert import javascript_bundle

    return f"(function () {{{javascript_bundle('window.vegaEmbed = vegaEmbed;', vl_version=VEGA_LITE)}}})();\n"
