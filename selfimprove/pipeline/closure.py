"""Determines the code a stage depends on: every module of this repository that its script imports, transitively.

The closure includes imports inside functions, relative imports, the ``__init__.py`` of packages, modules that are
started in other processes and therefore not imported, and files that a module reads from its own folder
(``with_name``). It excludes ``PLUMBING``, empty ``__init__.py`` files, and environments that the params do not name.
Code is hashed without comments, docstrings and layout, so that only changes to the program count.

The manifest of a script is the dependency through which DVC tracks the code of its stages (the stage ``inputs`` writes
it to ``data/code``) and part of their scratch key. An edit therefore re-runs only the stages that import the module.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from selfimprove.core.overlay import texts
from selfimprove.core.yaml import read_yaml
from selfimprove.pipeline.installed import installed
from selfimprove.pipeline.params import PARAMS_FILE

MANIFESTS = Path("data/code")
ENVIRONMENT = MANIFESTS / "environment.txt"
"""Where the stage ``inputs`` writes the installed packages."""

REGISTRY = Path("selfimprove/envs/registry.py")
"""Imports environments by name. Only the names of those absent from the params are read; no stage depends on them."""

KNOWN = Path(".scratch/code.json")
"""Cache of the analysis of each file, keyed by the hash of its content: parsing all files takes two seconds."""
KNOWN_FORMAT = 2
"""Incremented when the analysis changes; a cache in another format is ignored."""

TRAINING = Path("selfimprove/training")
STARTED_BY_NAME: dict[Path, tuple[Path, ...]] = {
    Path("selfimprove/models/merging.py"): (Path("selfimprove/models/merge.py"),),
    Path("selfimprove/apps/demo.py"): (Path("selfimprove/apps/report/table.py"),),
    Path("selfimprove/pipeline/rehearsal/run.py"): (
        Path("selfimprove/pipeline/check.py"),
        Path("selfimprove/pipeline/warm.py"),
    ),
    TRAINING / "processes.py": (TRAINING / "torchrun.py", TRAINING / "worker.py"),
    TRAINING / "xtuner/backend.py": (TRAINING / "xtuner/launch.py", TRAINING / "xtuner/parts.py"),
}
"""Module -> modules that run in processes it starts (by ``python -m`` or through a config that names them)."""

PLUMBING = frozenset(
    Path(file)
    for file in (
        "selfimprove/core/tracking.py",
        "selfimprove/engines/progress.py",
        "selfimprove/pipeline/closure.py",
        "selfimprove/pipeline/dvc_files.py",
        "selfimprove/pipeline/forks.py",
        "selfimprove/pipeline/forward.py",
        "selfimprove/pipeline/installed.py",
        "selfimprove/pipeline/lock.py",
        "selfimprove/pipeline/overall.py",
        "selfimprove/pipeline/recorded.py",
        "selfimprove/pipeline/stage_log.py",
        "selfimprove/pipeline/warm.py",
        "selfimprove/training/progress.py",
        "selfimprove/training/stopping.py",
        "stages/__init__.py",
    )
)
"""Modules that cannot change a result: they display, time, lock, save or refuse the work, or name a run.

A test replaces each with a module that does almost nothing and checks that the stages publish the same bytes.
"""


class _Source(NamedTuple):
    """Analysis of a file: hashes of its content and of its program, and the modules and files that it names."""

    content: str
    code: str
    modules: list[str]
    beside: list[str]


def manifest(script: Path, root: Path = Path()) -> str:
    """A script's dependencies, one line each: SHA-256 of the program (or data file) and the path below ``root``.

    These are the script and each file that it imports, starts or reads, transitively; the last line is the environment.
    """
    return manifests([script], root)[script]


def manifests(wanted: Iterable[Path], root: Path = Path()) -> dict[Path, str]:
    """The manifests of several scripts."""
    environment = hashlib.sha256(installed(root).encode()).hexdigest()
    made = {}
    with _Sources(root) as sources:
        for script in wanted:
            lines = [f"{source.code}  {file}\n" for file, source in sorted(sources.closure(script).items())]
            made[script] = "".join([*lines, f"{environment}  {ENVIRONMENT}\n"])
    return made


def scripts(root: Path = Path()) -> list[Path]:
    """The scripts of all stages, relative to ``root``."""
    return sorted(path.relative_to(root) for path in (root / "stages").rglob("*.py") if path.name != "__init__.py")


def program(text: str) -> str:
    """A module's syntax tree without comments, docstrings and positions, the same in every Python version."""
    return repr(_shape(ast.parse(text)))


class _Sources:
    """Context manager that analyses each file once, reusing the results of earlier processes from ``KNOWN``."""

    def __init__(self, root: Path) -> None:
        self._root, self._file = root, root / KNOWN
        self._known = _read_known(self._file)
        self._read: dict[Path, _Source | None] = {}
        self._needed: dict[Path, list[Path]] = {}
        self._new = False

    def closure(self, script: Path) -> dict[Path, _Source]:
        """All files that a script consists of, with their analysis."""
        found: dict[Path, _Source] = {}
        waiting = [script]
        while waiting:
            file = waiting.pop()
            if file not in found and file not in PLUMBING and (source := self._source(file)):
                found[file] = source
                if file not in self._needed:  # the closures of several scripts share most files
                    self._needed[file] = [
                        one for one in self._needs(file, source) if one not in PLUMBING and self._source(one)
                    ]
                waiting.extend(self._needed[file])
                waiting.extend(_played(script, self._root) if file == REGISTRY else ())
        return found

    def _needs(self, file: Path, source: _Source) -> Iterator[Path]:
        for name in source.modules:
            yield from _files_of(name)
        for name in source.beside:
            place = self._root / file.with_name(name)
            inner = place.rglob("*") if place.is_dir() else [place]
            yield from (one.relative_to(self._root) for one in inner if "__pycache__" not in one.parts)
        yield from STARTED_BY_NAME.get(file, ())

    def _source(self, file: Path) -> _Source | None:
        """None if there is no such file: a name imported from a module may be a submodule or an attribute."""
        if file not in self._read:
            path = self._root / file
            data = path.read_bytes() if path.is_file() else None
            empty = data is None or (file.name == "__init__.py" and not data.strip())
            self._read[file] = None if empty or data is None else self._parsed(file, data)
        return self._read[file]

    def _parsed(self, file: Path, data: bytes) -> _Source:
        content = hashlib.sha256(data).hexdigest()
        if file.suffix != ".py":
            return _Source(content, content, [], [])
        known = self._known.get(str(file))
        if known is None or known.content != content:
            known = self._known[str(file)] = _parsed(content, data.decode("utf-8"), file.parent.parts)
            self._new = True
        return known

    def __enter__(self) -> _Sources:
        return self

    def __exit__(self, *_: object) -> None:
        """Save new results if there is a scratch folder; a checksum detects a truncated file."""
        if self._new and self._file.parent.is_dir():
            text = json.dumps(self._known)
            with suppress(OSError):  # a full disk only costs time here
                self._file.write_text(f"{_sealed(text)}\n{text}", encoding="utf-8")


@cache
def _files_of(module: str) -> tuple[Path, ...]:
    """The files that Python may run for ``import a.b``: the module's own and its packages' (they need not exist)."""
    parts = module.split(".")
    packages = (Path(*parts[:end], "__init__.py") for end in range(1, len(parts) + 1))
    return (Path(*parts).with_suffix(".py"), *packages)


def _played(script: Path, root: Path) -> Iterator[Path]:
    """Files of the environments that the params of the script's method name; of all methods if it belongs to none."""
    from selfimprove.envs.registry import DEFAULTS, MIXTURE, modules_of

    values = read_yaml(root / PARAMS_FILE) if (root / PARAMS_FILE).is_file() else {}
    for method in [script.parent.name] if script.parent.name in values else list(DEFAULTS):
        section = values.get(method) or {}
        env = section.get("env") or {}
        played = MIXTURE if isinstance(env, list) else str(env.get("name", DEFAULTS.get(method, "")))
        modules = {module for name in {played, *texts(section)} for module in modules_of(method, name)}
        if played == MIXTURE:
            modules.update(module for name in texts(env) for module in modules_of(method, name, mixed=True))
        for module in modules:
            yield from _files_of(module)


def _read_known(file: Path) -> dict[str, _Source]:
    """The cache; empty if the file is missing or damaged."""
    try:
        checksum, text = file.read_text(encoding="utf-8").split("\n", 1)
    except (OSError, ValueError):
        return {}
    if checksum != _sealed(text):
        return {}
    return {name: _Source(*values) for name, values in json.loads(text).items()}


def _sealed(text: str) -> str:
    return hashlib.sha256(f"{KNOWN_FORMAT} {text}".encode()).hexdigest()


def _parsed(content: str, text: str, package: tuple[str, ...]) -> _Source:
    """Analysis of a file's text; ``package``: the names of its enclosing packages, to resolve relative imports."""
    modules, beside = set[str](), set[str]()
    tree = ast.parse(text)
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                modules.update(alias.name for alias in node.names)
            case ast.ImportFrom(module=str(module), level=0):
                modules.add(module)
                modules.update(f"{module}.{alias.name}" for alias in node.names)
            case ast.ImportFrom(module=module, level=level) if 0 < level <= len(package):
                start = ".".join([*package[: len(package) - level + 1], *([module] if module else [])])
                modules.add(start)
                modules.update(f"{start}.{alias.name}" for alias in node.names)
            case ast.Call(func=ast.Attribute(attr="with_name"), args=[ast.Constant(value=str(name))]):
                beside.add(name)
    return _Source(content, hashlib.sha256(program(text).encode()).hexdigest(), sorted(modules), sorted(beside))


def _shape(node: Any) -> Any:
    """A syntax tree as plain values; empty fields are omitted, because they differ between Python versions."""
    if isinstance(node, ast.AST):
        fields = ((name, _shape(value)) for name, value in ast.iter_fields(node))
        return (type(node).__name__, *((name, shape) for name, shape in fields if shape is not None and shape != []))
    if isinstance(node, list):
        return [_shape(inner) for inner in node if not _is_text(inner)]
    return node


def _is_text(node: Any) -> bool:
    """Whether a statement is a bare string, such as a docstring."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
