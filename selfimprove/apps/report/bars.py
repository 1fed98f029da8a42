"""One picture for each method: a bar for each row's headline metric, with its standard error."""

from __future__ import annotations

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from selfimprove.core.publish import aside

CODE = Path(__file__)


def draw_bars(method: str, summary: Mapping[str, Any], file: Path) -> None:
    """Write the picture as PNG; a file that shows these very values already is left as it is."""
    metric = summary.get("headline", summary["columns"][0])
    values = {name: summary["rows"][name]["metrics"][metric] for name in summary["order"]}
    content = json.dumps([method, metric, values, summary["solid"], CODE.read_text(encoding="utf-8")], sort_keys=True)
    shown = sha256(content.encode()).hexdigest()
    if not (file.is_file() and shown.encode() in file.read_bytes()):
        _draw(method, metric, values, summary["solid"], file, shown)


def _draw(method: str, metric: str, values: Mapping[str, Any], solid: list[str], file: Path, shown: str) -> None:
    """The file says itself what it shows, as a comment in its metadata."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = list(values)
    figure, axes = pyplot.subplots(figsize=(7, 0.8 + 0.4 * len(names)), layout="constrained")
    means, errors = ([values[name][key] for name in names] for key in ("mean", "se"))
    colours = ["tab:blue" if name in solid or name.startswith("iter") else "lightgray" for name in names]
    bars = axes.barh(names, means, xerr=errors, color=colours, ecolor="black", capsize=3)
    scale = "{:.1f}" if metric.endswith("score") else "{:.3f}"
    axes.bar_label(bars, [scale.format(mean) for mean in means], padding=14)
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set(xlabel=f"{metric} on held-out tasks (± standard error)", title=method)
    with aside(file) as part:
        figure.savefig(part, format="png", dpi=130, metadata={"Comment": shown})
    pyplot.close(figure)
