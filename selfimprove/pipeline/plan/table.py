"""Formats a plan as tables for the terminal or as Markdown."""

from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from selfimprove.core.pages import markdown
from selfimprove.pipeline.plan.estimate import Estimate
from selfimprove.pipeline.plan.hardware import GB
from selfimprove.pipeline.plan.plan import MethodPlan, disk_of

STYLE: dict[str, Any] = {"box": box.SIMPLE_HEAD, "padding": 0, "pad_edge": False, "show_edge": False}


def show(plan: MethodPlan, console: Console, *, detail: bool = False) -> None:
    """Print one method's plan. ``console``: without markup, which names of engines may contain."""
    machine = plan.machine
    console.print()
    shown = f"{f'profile {plan.profile}' if plan.profile else 'params.yaml'}: {count(plan.parameters)} parameters"
    console.print(Text.assemble((plan.method, "bold"), f", {shown}"))
    if any(line.gpus for line in plan.lines):
        console.print(
            (f"{machine.nodes} nodes, each " if machine.nodes > 1 else "")
            + f"{machine.count} x {machine.gpu.name} with {machine.memory / GB:.0f} GB, "
            f"{machine.gpu.operations / 1e12:.0f} TFLOP/s in bfloat16, {machine.gpu.bandwidth / 1e12:.2f} TB/s",
            highlight=False,
        )
    else:
        console.print("All stages run on the CPU: no GPU is needed, and hours are not estimated.", highlight=False)
    console.print(_lines(plan))
    for table in ([_memory(plan), _disk(plan)] if detail else []) + ([_remote(plan)] if plan.remote else []):
        console.print()
        console.print(table)
    console.print()
    for note in [*_legend(plan), *plan.notes]:
        console.print(f"- {note}", highlight=False, style="dim")


def show_total(found: Sequence[MethodPlan], console: Console) -> None:
    """Print the totals of several methods that run one after another."""
    lines = [line for plan in found for line in plan.lines]
    used = [plan.hours for plan in found if plan.hours is not None]
    console.print(
        f"All {len(found)} methods: {size(disk_of(found))} GB of disk, "
        f"{count(sum(line.read for line in lines))} tokens read, {count(sum(line.written for line in lines))} generated"
        + (f", {hours(sum(used))} hours." if used else "."),
        highlight=False,
    )


def _lines(plan: MethodPlan) -> Table:
    table = Table(**STYLE, show_footer=True)
    gpu_lines = [line for line in plan.lines if line.gpus]
    total = plan.kept + plan.while_running
    table.add_column("stage", footer="total", no_wrap=True)
    columns = (
        ("GPUs", str(max(line.gpus for line in plan.lines) or "–")),
        ("GPU\nGB", size(max((line.memory.total for line in gpu_lines), default=0))),
        ("host\nGB", size(max(line.host for line in plan.lines))),
        ("disk\nGB", size(total)),
        ("tokens\nread", count(sum(line.read for line in plan.lines))),
        ("tokens\nmade", count(sum(line.written for line in plan.lines))),
        ("hours", hours(plan.hours)),
        ("at %", ""),
    )
    for head, foot in columns:
        table.add_column(head, footer=foot, justify="right", no_wrap=True)
    for line in plan.lines:
        table.add_row(
            short(line, plan), str(line.gpus or "–"), size(line.memory.total), size(line.host),
            size(line.kept + line.while_running), count(line.read), count(line.written),
            hours(line.hours if line.gpus else None), line.at if line.gpus else "",
        )  # fmt: skip
    return table


def _memory(plan: MethodPlan) -> Table:
    table = Table(title="GB on each GPU", **STYLE, title_justify="left")
    table.add_column("stage", no_wrap=True)
    for head in ("weights", "grads", "optim.", "activ.", "KV", "other", "all"):
        table.add_column(head, justify="right", no_wrap=True)
    for line in plan.lines:
        if line.gpus:
            parts = [size(part) for part in astuple(line.memory)]
            table.add_row(short(line, plan), *parts, size(line.memory.total))
    return table


def _disk(plan: MethodPlan) -> Table:
    table = Table(title="GB on disk", **STYLE, title_justify="left")
    table.add_column("stage", no_wrap=True)
    table.add_column("outputs, cache", justify="right")
    table.add_column("checkpoints", justify="right")
    for line in plan.lines:
        table.add_row(short(line, plan), size(line.kept), size(line.while_running))
    return table


def _remote(plan: MethodPlan) -> Table:
    price = plan.machine.price
    table = Table(title="Endpoints, at most", **STYLE, title_justify="left")
    table.add_column("stage", no_wrap=True)
    for head in ("engine", "requests", "read", "written", "price"):
        table.add_column(head, justify="left" if head == "engine" else "right", no_wrap=True)
    rows = [(short(line, plan), name, counts) for line in plan.lines for name, counts in line.remote.items()]
    rows += [("total", name, counts) for name, counts in plan.remote.items()]
    for stage, name, (requests, read, written) in rows:
        cost = f"{(read * price[0] + written * price[1]) / 1e6:,.2f}" if price else "PRICE="
        table.add_row(stage, name, f"{requests:,}", count(read), count(written), cost)
    return table


def _legend(plan: MethodPlan) -> list[str]:
    notes = ["Counts are upper bounds, without retries of requests whose answer was unusable."]
    if any(line.gpus for line in plan.lines):
        notes.append(
            "Hours assume the utilisation in column 'at %': of the GPU's compute in training; of its compute in "
            "prefill and of its memory bandwidth in decoding. These percentages are assumed. A small model is limited "
            "by kernel launches instead, whose times were measured on one H100 (docs/gpu.md)."
        )
    if plan.machine.nodes > 1:
        worst = plan.bottleneck
        notes.append(
            f"vLLM's replicas run on all {plan.machine.nodes} nodes (CLUSTER=ray); training uses as many nodes as "
            f"launcher.nodes specifies. The longest stage, {short(worst, plan)}, uses {worst.at_work} of "
            f"{plan.machine.gpus} GPUs."
        )
    if plan.cost is not None and (plan.hours is not None or plan.remote):
        cost = digits(plan.cost) if plan.cost else "0"
        notes.append(f"Cost: {cost}, of all GPUs for these hours and of the endpoints' tokens.")
    notes.append(
        "Disk: outputs with DVC's cache, and checkpoints while a stage runs; the total includes the largest of these."
    )
    idle = [short(line, plan) for line in plan.lines if 0 < line.gpus < plan.machine.count]
    if idle:
        notes.append(f"Some of the {plan.machine.count} GPUs are idle in {', '.join(idle)}.")
    if plan.merged:
        notes.append(
            f"The total includes {size(plan.merged)} GB for the newest LoRA rows, merged with their base when they are "
            "read (.scratch/merged)."
        )
    return notes


def cluster_overview(one: Sequence[MethodPlan], several: Sequence[MethodPlan], wide: Sequence[MethodPlan]) -> str:
    """A Markdown table of each GPU profile's hours on one machine, on several, and on several with all training spread
    over them; with the longest stage, GPU hours and cost of the second case."""
    machine = several[0].machine
    heads = [
        "profile", "hours, 1 node", f"{machine.nodes} nodes", "training on all, too",
        f"longest stage on {machine.nodes}", "its GPUs", "GPU hours", "cost",
    ]  # fmt: skip
    rows = []
    for before, plan, best in zip(one, several, wide, strict=True):
        worst, total = plan.bottleneck, plan.hours or 0.0
        method = f" ({plan.method})" if sum(other.profile == plan.profile for other in several) > 1 else ""
        share = f", {(worst.hours or 0.0) / total:.0%}" if total else ""
        rows.append(
            [
                f"`{plan.profile}`{method}", hours(before.hours), hours(plan.hours), hours(best.hours),
                f"{short(worst, plan)}{share}", f"{worst.at_work} of {machine.gpus}", hours(total * machine.gpus),
                "–" if plan.cost is None else f"{plan.cost:,.0f}",
            ]
        )  # fmt: skip
    return markdown(heads, rows)


def overview(found: Sequence[MethodPlan]) -> str:
    """A Markdown table with one line per profile and method: its totals and whether it fits."""
    heads = [
        "profile", "GPUs", "GB a GPU", "host GB", "disk GB", "tokens read", "written", "teacher tokens", "GPU hours",
        "fits",
    ]  # fmt: skip
    rows = []
    for plan in found:
        machine = plan.machine
        remote = sum(read + written for _, read, written in plan.remote.values())
        method = f" ({plan.method})" if sum(other.profile == plan.profile for other in found) > 1 else ""
        total = sum((line.hours or 0.0) * line.gpus for line in plan.lines)
        rows.append(
            [
                f"`{plan.profile}`{method}", f"{machine.count} × {machine.gpu.name}, {machine.memory / GB:.0f} GB",
                size(max(line.memory.total for line in plan.lines)), size(max(line.host for line in plan.lines)),
                size(plan.kept + plan.while_running), count(sum(line.read for line in plan.lines)),
                count(sum(line.written for line in plan.lines)), count(remote), hours(total),
                "no" if plan.problems else "yes",
            ]
        )  # fmt: skip
    return markdown(heads, rows)


def short(line: Estimate, plan: MethodPlan) -> str:
    """A stage's name without its method, which is shown above the table."""
    return "base" if line.stage == f"base@{plan.method}" else line.stage.removeprefix(f"{plan.method}-")


def size(number: float) -> str:
    """Bytes in GB, formatted by ``digits``; – for zero."""
    return digits(number / GB) if number else "–"


def count(number: float) -> str:
    """A count such as 12.3M; – for zero."""
    for limit, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= limit:
            return f"{number / limit:.3g}{unit}" if number / limit < 999.5 else f"{number / limit:.0f}{unit}"
    return str(round(number)) if number else "–"


def hours(number: float | None) -> str:
    """Hours such as 2.5; – for zero or None."""
    return digits(number) if number else "–"


def digits(value: float) -> str:
    """A positive number with at most three significant digits, or all integer digits."""
    if value < 0.005:
        return "<0.01"
    return f"{value:.2f}" if value < 1 else f"{value:.1f}" if value < 100 else f"{value:,.0f}"
