"""What code a stage depends on: every module of this repository that its script imports, directly or not.

Imports inside functions count, and so do modules that another process is started with, which no import names; empty
``__init__.py`` files do not count. The stage ``code`` writes a manifest for each script, which the script's stages have
as a dep: whatever is edited, only those run again that import it.
"""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from pathlib import Path

from selfimprove.pipeline.installed import installed

ROOTS = ("selfimprove", "stages")
ENVIRONMENT = Path("data/code/environment.txt")
"""Where the stage ``code`` writes what is installed."""

TRAINING = Path("selfimprove/training")
STARTED_BY_NAME: dict[Path, tuple[Path, ...]] = {
    Path("selfimprove/models/merging.py"): (Path("selfimprove/models/merge.py"),),
    Path("selfimprove/apps/demo.py"): (Path("selfimprove/apps/report/table.py"),),
    Path("selfimprove/pipeline/rehearsal/run.py"): (
        Path("selfimprove/pipeline/check.py"),
        Path("selfimprove/pipeline/warm.py"),
    ),
    TRAINING / "processes.py": (TRAINING / "worker.py",),
    TRAINING / "xtuner/backend.py": (TRAINING / "xtuner/launch.py", TRAINING / "xtuner/parts.py"),
}
"""Module -> modules that run in processes which it starts (``python -m``, or a config that the other reads)."""


def closure(script: Path, root: Path = Path()) -> list[str]:
    """Repository files a script imports or starts, directly or not, itself included; sorted, relative to ``root``."""
    found: set[Path] = set()
    waiting = [script]
    while waiting:
        file = waiting.pop()
        if file not in found:
            found.add(file)
            waiting.extend(_imports(root / file, root))
            waiting.extend(STARTED_BY_NAME.get(file, ()))
    return sorted(str(path) for path in found)


def manifest(script: Path, root: Path = Path()) -> str:
    """The script's closure and the environment, a line each: SHA-256 and path, as ``sha256sum --check`` reads it."""
    contents = {file: (root / file).read_bytes() for file in closure(script, root)}
    contents[str(ENVIRONMENT)] = installed(root).encode()
    return "".join(f"{hashlib.sha256(content).hexdigest()}  {file}\n" for file, content in contents.items())


def scripts(root: Path = Path()) -> list[Path]:
    """The scripts of all stages, relative to ``root``."""
    return sorted(path.relative_to(root) for path in (root / "stages").rglob("*.py") if path.name != "__init__.py")


@cache
def _imports(file: Path, root: Path) -> frozenset[Path]:
    """Files of this repository that one file imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    files = (Path(*name.split(".")).with_suffix(".py") for name in names if name.split(".")[0] in ROOTS)
    return frozenset(path for path in files if (root / path).is_file())
