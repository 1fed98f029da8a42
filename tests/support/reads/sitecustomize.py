"""Records what every stage reads. Python imports this module automatically if its folder is on PYTHONPATH.

In a process that DVC started for a stage, a line is added to ``.scratch/reads/<stage>`` for each file of the repository
that is opened for reading, and for each value of params.yaml that is accessed. Files opened by compiled code are
missing, but a model folder also contains files that Python opens. Another line is added for each place in the code that
adds floats with the builtin ``sum``.
"""

from __future__ import annotations

import builtins
import os
import sys
from collections.abc import Iterable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

ROOT = os.getcwd() + os.sep  # DVC and make start stages in the repository
OURS = ("data/", "models/", "results/")  # files next to the code are part of data/code
PARAMS = "selfimprove.pipeline.params"
SEEN: set[tuple[str, str]] = set()
PLACES: dict[int, str] = {}
SUM = sum
KEPT: list[Any] = []
"""Keeps the objects whose ids are in ``PLACES`` alive, so that no id is reused."""


def note(kind: str, what: str) -> None:
    """Write a line, once per stage."""
    stage = os.environ.get("DVC_STAGE", "")
    if not stage or (stage, what) in SEEN:
        return
    SEEN.add((stage, what))
    folder = Path(ROOT, ".scratch/reads")
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / stage).open("a") as file:
        file.write(f"{kind} {what}\n")


def opened(event: str, arguments: tuple[Any, ...]) -> None:
    """The audit hook."""
    if event != "open" or not isinstance(arguments[0], str | bytes | os.PathLike):
        return
    path, flags = os.fsdecode(arguments[0]), arguments[2]
    place = os.path.normpath(os.path.join(os.getcwd(), path)).removeprefix(ROOT)
    reading = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR) == 0
    if reading and place.startswith(OURS) and not place.endswith((".py", ".pyc")) and not os.path.isdir(path):
        note("file", place)


def watched_sum(iterable: Iterable[Any], /, start: Any = 0) -> Any:
    """``sum`` with its signature, which torch checks; notes where code of this repository adds floats with it."""
    total = SUM(iterable, start)
    if isinstance(total, float):
        code = sys._getframe(1)
        place = code.f_code.co_filename.removeprefix(ROOT)
        if place.startswith(("selfimprove/", "stages/")):
            note("sum", f"{place}:{code.f_lineno}")
    return total


class Watching(MetaPathFinder, Loader):
    """Imports ``selfimprove.pipeline.params`` and makes ``load_section`` record accesses to what it returns."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if name != PARAMS:
            return None
        spec = PathFinder.find_spec(name, path)
        assert spec is not None
        self.own, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: Any) -> None:
        self.own.exec_module(module)  # type: ignore[union-attr]
        load = module.load_section
        section = module.Section
        get = section.__getattribute__

        def watched(self: Any, name: str) -> Any:
            value = get(self, name)
            place = PLACES.get(id(self))
            if place is not None and name in type(self).model_fields and not list(parts(value)):
                note("param", f"{place}.{name}")
            return value

        def parts(value: Any) -> Any:
            if isinstance(value, section):
                yield "", value
            elif isinstance(value, dict):
                yield from ((f".{key}", one) for key, one in value.items() if isinstance(one, section))

        def follow(value: Any, place: str) -> None:
            PLACES[id(value)] = place
            KEPT.append(value)
            for field in type(value).model_fields:
                for key, inner in parts(get(value, field)):
                    follow(inner, f"{place}.{field}{key}")

        def load_watched(values: Any, name: str, schema: Any, where: str) -> Any:
            loaded = load(values, name, schema, where)
            follow(loaded, name)
            return loaded

        section.__getattribute__ = watched
        module.load_section = load_watched


builtins.sum = watched_sum
sys.addaudithook(opened)
sys.meta_path.insert(0, Watching())
