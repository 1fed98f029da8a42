"""Generates the table of rehearsals in docs/gpu.md from docs/rehearsals.json.

A rehearsal that ran its whole graph writes ``rehearsed.json`` to its folder. ``make docs`` runs this module, which
merges these files into docs/rehearsals.json, keeping the newest of each profile and mode, and writes the table.
"""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter

from selfimprove.core.pages import between, markdown
from selfimprove.core.publish import write_text
from selfimprove.pipeline.rehearsal.folder import HOME
from selfimprove.pipeline.rehearsal.rule import Replacement

FILE = Path("docs/rehearsals.json")
PAGE = Path("docs/gpu.md")
BEGIN, END = "<!-- rehearsals: `make docs` -->\n", "<!-- end of rehearsals -->\n"
OUTCOME = "rehearsed.json"

NAMED: Mapping[str, str] = {
    "model": "base model",
    "base_url": "teacher",
    "file": "chats",
    "source": "tasks",
    "processes": "processes",
    "tensor_parallel": "tensor_parallel",
    "nodes": "nodes",
    "search": "search",
    "engine": "engine of the first search",
    "models": "turns of the first iteration",
}
"""Last part of a key -> its name in the table, for replacements that differ between profiles."""


class Rehearsed(BaseModel):
    """One rehearsal that ran its whole graph.

    Attributes:
        replaced: descriptions of replacements other than sizes, device, data type and kernels.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    profile: str
    methods: list[str]
    quick: bool
    date: str
    machine: str
    stages: int
    minutes: float
    replaced: list[str]


_LIST = TypeAdapter(list[Rehearsed])


def outcome(
    profile: str,
    methods: Sequence[str],
    replaced: Sequence[Replacement],
    minutes: Mapping[str, float],
    *,
    quick: bool,
    gpus: int,
) -> Rehearsed:
    """The record of a rehearsal that has just finished, for ``OUTCOME``."""
    return Rehearsed(
        profile=profile,
        methods=list(methods),
        quick=quick,
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        machine=_machine(gpus),
        stages=len(minutes),
        minutes=round(sum(minutes.values()), 1),
        replaced=notable(replaced),
    )


def notable(replaced: Sequence[Replacement]) -> list[str]:
    """The replacements shown in the table, without duplicates."""
    found = []
    for one in replaced:
        name = NAMED.get(one.key.rpartition(".")[2])
        if one.kind == "left out":
            found.append(f"without `{one.key.partition('.')[2]}`")
        elif one.kind == "service" and name == "teacher":
            found.append("teacher: a local server")
        elif one.kind != "size" and name is not None and one.new is not None:
            new = ", ".join(one.new) if isinstance(one.new, list) else one.new
            found.append(f"{name}: `{new}`" + (f" (of {one.old})" if isinstance(one.old, int) else ""))
    return list(dict.fromkeys(found))


def collect(root: Path) -> None:
    """Merge the outcomes of the repository's rehearsals into ``FILE`` and write the table in ``PAGE``.

    A rehearsal of fewer methods does not replace one of more.
    """
    kept = {(one.profile, one.quick): one for one in read(root)}
    for file in sorted((root / HOME).glob(f"*/{OUTCOME}")):
        one = Rehearsed.model_validate_json(file.read_text(encoding="utf-8"))
        before = kept.get((one.profile, one.quick))
        if before is None or {*one.methods} >= {*before.methods}:
            kept[one.profile, one.quick] = one
    rows = [kept[key] for key in sorted(kept)]
    write_text(root / FILE, _LIST.dump_json(rows, indent=2).decode() + "\n")
    page = (root / PAGE).read_text(encoding="utf-8")
    write_text(root / PAGE, with_table(page, rows))


def read(root: Path) -> list[Rehearsed]:
    """The rows of ``FILE``; empty if it does not exist."""
    file = root / FILE
    return _LIST.validate_json(file.read_text(encoding="utf-8")) if file.is_file() else []


def with_table(page: str, rows: Sequence[Rehearsed]) -> str:
    """The page with the table of these rows between its marks."""
    return between(page, BEGIN, END, table(rows))


def table(rows: Sequence[Rehearsed]) -> str:
    lines = []
    for one in rows:
        how, what = "`QUICK=1`" if one.quick else "in full", ", ".join(one.replaced) or "–"
        lines.append([f"`{one.profile}`", how, one.machine, str(one.stages), str(one.minutes), what])
    return markdown(["profile", "rehearsed", "on", "stages", "minutes", "replaced, beside sizes and device"], lines)


def _machine(gpus: int) -> str:
    if not gpus:
        return f"{os.cpu_count()} CPU cores"
    import torch

    return f"{gpus} × {torch.cuda.get_device_name()}"


if __name__ == "__main__":
    collect(Path.cwd())
