"""``make plan``: estimates what every stage of params.yaml, or of ``PROFILE=name``, needs and checks that it fits."""

from dataclasses import replace
from typing import Annotated, Any

import typer
from rich.console import Console

from selfimprove.core import cli
from selfimprove.core.errors import UserError
from selfimprove.pipeline.params import METHODS
from selfimprove.pipeline.plan.hardware import (
    Asked,
    parse_disk,
    parse_gpu,
    parse_gpus,
    parse_hourly,
    parse_nodes,
    parse_price,
)
from selfimprove.pipeline.plan.plan import MethodPlan, faults, methods_of, plans
from selfimprove.pipeline.plan.table import cluster_overview, overview, show, show_total
from selfimprove.pipeline.profiles import names

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    profile: Annotated[
        str, typer.Argument(help="a profile's name; none: params.yaml; all: totals of every GPU profile")
    ] = "",
    method: Annotated[
        str, typer.Option(help="rise, agent_r, reflect_rl or spin; all: every method that the profile sets up")
    ] = "all",
    gpus: Annotated[str, typer.Option(help="GPUs per machine and memory of each, such as 4x80GB")] = "",
    gpu: Annotated[str, typer.Option(help="GPU model, such as H100")] = "",
    disk: Annotated[str, typer.Option(help="free disk space, such as 2TB")] = "",
    price: Annotated[
        str, typer.Option(help="price per million prompt tokens and per million generated tokens, such as 0.5,1.5")
    ] = "",
    nodes: Annotated[str, typer.Option(help="number of machines, such as 8")] = "1",
    gpu_price: Annotated[str, typer.Option(help="price of a GPU per hour, such as 2.5")] = "",
    detail: Annotated[bool, typer.Option(help="also show memory and disk by part")] = False,
) -> None:
    """Print the plan. Exit code 2: something does not fit (``all``: one of the profiles), or an option is invalid."""
    if method != "all" and method not in METHODS:
        raise UserError(f"METHOD={method!r} is not a method; choose all, {', '.join(METHODS)}.")
    asked = Asked(
        gpus=parse_gpus(gpus) if gpus else None,
        gpu=parse_gpu(gpu) if gpu else None,
        disk=parse_disk(disk) if disk else None,
        price=parse_price(price) if price else None,
        nodes=parse_nodes(nodes),
        hourly=parse_hourly(gpu_price) if gpu_price else None,
    )
    if profile == "all":
        _plan_all(method, asked)
        return
    found = plans(profile, method, asked)
    console = Console(markup=False, emoji=False)
    for plan in found:
        show(plan, console, detail=detail)
    if len(found) > 1:
        show_total(found, console)
    problems = faults(found)
    if problems:
        raise UserError("\n".join(f"does not fit: {problem}" for problem in problems))
    console.print("Everything fits.", highlight=False)


def _plan_all(method: str, asked: Asked) -> None:
    """Print the totals of every profile that uses GPUs, for one machine or, with several, also compared with one."""

    def planned(**changes: Any) -> list[MethodPlan]:
        profiles = [name for name in names() if method in ("all", *methods_of(name))]
        found = [plan for name in profiles for plan in plans(name, method, replace(asked, **changes))]
        return [plan for plan in found if any(line.gpus for line in plan.lines)]

    found = planned()
    one = asked.nodes == 1
    print(overview(found) if one else cluster_overview(planned(nodes=1), found, planned(wide=True)), end="")
    unfit = [name for name in names() if faults([plan for plan in found if plan.profile == name])]
    if unfit:
        alone = "does not fit; plan it alone (PROFILE={}, other settings unchanged) to see why."
        raise UserError("\n".join(f"{name} {alone.format(name)}" for name in unfit))


if __name__ == "__main__":
    cli.run(app)
