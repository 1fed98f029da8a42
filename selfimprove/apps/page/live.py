"""The current state of a run, read from its scratch folder: running stages, curves so far, latest output."""

import json
import re
import time
from collections.abc import Iterator, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

import psutil

from selfimprove.apps.page.episodes import clip
from selfimprove.apps.report.schema import TIMING, read_timing
from selfimprove.pipeline.lock import HOST, OWNER, holder
from selfimprove.pipeline.plan.hardware import nvidia_smi

SCRATCH = Path(".scratch")
TAIL = 64_000
"""Number of bytes read from the end of a log or a journal."""

LAST = 5
"""How many of a journal's newest entries are shown."""

_COUNT = re.compile(r"(\d{1,15})/(\d{1,15})")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|(?<![^\S\n\r])[^\S\n\r]*+\r")

Json = dict[str, Any]


def status(root: Path) -> Json:
    """Running and recently finished stages; CPU, memory and GPUs."""
    scratch = root / SCRATCH
    working = [_stage(scratch, name) for name in _working(scratch / "locks")]
    ended = sorted(
        ({"stage": path.stem, "at": path.stat().st_mtime, "seconds": read_timing(root, path.stem).get("seconds")}
         for path in (root / TIMING).glob("*.json")),
        key=lambda one: -float(one["at"] or 0),
    )  # fmt: skip
    memory = psutil.virtual_memory()
    return {
        "time": time.time(), "working": working, "ended": ended[:12],
        "cpu": psutil.cpu_percent(), "memory": [memory.used, memory.total], "gpus": gpus(),
    }  # fmt: skip


def _working(locks: Path) -> Iterator[str]:
    """Stages whose lock belongs to a live process of this machine."""
    for path in sorted(locks.glob(f"*{OWNER}")):
        found = holder(path)
        if found is not None and found.get("host", HOST) == HOST:
            yield path.name.removesuffix(OWNER)


def _stage(scratch: Path, lock: str) -> Json:
    """A running stage. A lock is named ``rise-finetune-iter1``, a log ``rise-finetune@iter1.log``."""
    log = next((path for path in (scratch / "logs").glob("*.log") if path.stem.replace("@", "-") == lock), None)
    text = _CONTROL.sub("", tail(log).decode("utf-8", "replace")) if log else ""
    lines = [line for line in text.splitlines() if line.strip()]
    begun = max((place for place, line in enumerate(lines) if line.startswith("--- ")), default=-1)
    lines = lines[begun + 1 :]
    counts = [found for line in lines if (found := _COUNT.search(line))]
    stage = log.stem if log else lock
    return {
        "stage": stage, "line": clip(lines[-1])[:300] if lines else "Starting.",
        "done": int(counts[-1][1]) if counts else None, "total": int(counts[-1][2]) if counts else None,
        "curves": curves(scratch / "tensorboard" / stage), "written": written(scratch / "stages" / lock),
    }  # fmt: skip


def curves(folder: Path) -> dict[str, list[list[float]]]:
    """Metric -> [step, value] pairs of a stage's event files, subsampled."""
    if not folder.is_dir():
        return {}
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 200})
    try:
        events.Reload()
        return {  # JSON and charts have no nan, to which a loss may diverge
            name: [[event.step, event.value] for event in events.Scalars(name) if isfinite(event.value)]
            for name in events.Tags()["scalars"]
        }
    except Exception:  # a file that is being written may end in the middle of an event
        return {}


def written(folder: Path) -> list[str]:
    """The texts in the newest journal entries of a stage's most recent run."""
    journals = sorted(folder.glob("*/*.journal"), key=lambda path: path.stat().st_mtime)
    found: list[str] = []
    for line in reversed(tail(journals[-1]).splitlines() if journals else []):
        try:
            value = json.loads(line.partition(b" ")[2])["value"]
        except (ValueError, KeyError, TypeError, RecursionError):
            continue
        if text := " ".join(_texts(value)).strip():
            found.append(clip(text)[:600])
        if len(found) == LAST:
            break
    return found


def _texts(value: Any) -> Iterator[str]:
    """The texts in a journal entry that a model wrote, in order; without recursion, as nesting may be deep."""
    waiting = [("", value)]
    while waiting:
        name, one = waiting.pop()
        if isinstance(one, str) and name in ("text", "reply", "command", "thought", "action"):
            yield one
        elif isinstance(one, Mapping):
            waiting.extend(reversed(list(one.items())))
        elif isinstance(one, list):
            waiting.extend(("", inner) for inner in reversed(one))


def tail(path: Path) -> bytes:
    """The end of a file, starting with a complete line; empty if the file cannot be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - TAIL))
            data = file.read()
    except OSError:
        return b""
    return data if size <= TAIL else data.partition(b"\n")[2]


def gpus() -> list[Json]:
    """Utilisation and memory of each NVIDIA GPU."""
    rows = nvidia_smi("name", "utilization.gpu", "memory.used", "memory.total")
    return [dict(zip(("name", "use", "used", "total"), row, strict=True)) for row in rows]
