"""Keeps dvc.yaml true about code: a stage depends on every module of this repository that its script imports.

``python -m selfimprove.pipeline.closure`` rewrites the lists below each ``# code`` comment of dvc.yaml (``--check``
only says whether they are out of date). Imports inside functions count, and so do modules that another process is
started with, which no import names; empty ``__init__.py`` files do not count.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from functools import cache
from pathlib import Path

ROOTS = ("selfimprove", "stages")
ENVIRONMENT = "requirements/main.lock"
DVC_FILE = Path("dvc.yaml")

TRAINING = Path("selfimprove/training")
STARTED_BY_NAME: dict[Path, tuple[Path, ...]] = {
    TRAINING / "launch.py": (TRAINING / "worker.py",),
    TRAINING / "xtuner.py": (TRAINING / "xtuner_launch.py", TRAINING / "xtuner_parts.py"),
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


def rewrite(text: str, root: Path = Path()) -> str:
    """The dvc.yaml text with every ``# code`` list brought up to date."""
    lines: list[str] = []
    script: Path | None = None
    old = iter(text.splitlines())
    skipping = ""
    for line in old:
        if skipping and re.match(rf"{skipping}- (?:{'|'.join(ROOTS)}|requirements)/", line):
            continue
        skipping = ""
        lines.append(line)
        command = re.match(r"\s*cmd: python -m ([\w.]+)", line)
        if command:
            script = Path(*command.group(1).split(".")).with_suffix(".py")
        marker = re.match(r"(\s*)# code$", line)
        if marker and script:
            skipping = marker.group(1)
            lines.extend(f"{skipping}- {path}" for path in [*closure(script, root), ENVIRONMENT])
    return "\n".join(lines) + "\n"


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


def main() -> None:
    """Rewrite dvc.yaml, or with ``--check`` exit with 1 if that would change it."""
    text = DVC_FILE.read_text(encoding="utf-8")
    fresh = rewrite(text)
    if fresh == text:
        return
    if "--check" in sys.argv:
        print("dvc.yaml does not name the code its stages import; run `make deps`.", file=sys.stderr)
        sys.exit(1)
    temporary = DVC_FILE.with_suffix(".part")
    temporary.write_text(fresh, encoding="utf-8")
    os.replace(temporary, DVC_FILE)


if __name__ == "__main__":
    main()
