"""A rehearsal's folder, with links to the repository's code and graph and its own params, lock, cache and outputs.

``.rehearsal/<profile>`` is a DVC repository inside the repository. Code, ``dvc.yaml`` and declared sources are links
and therefore never stale. ``params.yaml``, ``dvc.lock``, ``.dvc/cache``, ``data``, ``models`` and ``results`` belong to
the rehearsal, so that the user's files do not change.
"""

import json
import socket
from pathlib import Path

from selfimprove.core.overlay import texts
from selfimprove.core.publish import aside, write_text
from selfimprove.core.seeds import SeedKey
from selfimprove.envs.math.arithmetic import generate
from selfimprove.envs.math.arithmetic_expert import expert
from selfimprove.envs.math.params import Difficulty
from selfimprove.envs.splits import Part
from selfimprove.methods.spin.chats import STEM, make_row, write_rows_to
from selfimprove.models.base import SHIPPED
from selfimprove.pipeline.params import NO_INPUTS
from selfimprove.pipeline.rehearsal.rule import Params
from selfimprove.training.processes import free_port

HOME = Path(".rehearsal")
LINKED = (
    "dvc.yaml",
    "selfimprove",
    "stages",
    "requirements",
    "data/sources.yaml",
    SHIPPED,
    ".dvc/config",
    ".dvc/plots",
    ".dvcignore",
    ".venvs",
)
LOCAL_CONFIG = "[core]\n    no_scm = true\n[cache]\n    dir = cache\n"

CHATS = "chats"
SNIPPETS = "snippets.jsonl"
MADE_SNIPPETS = (
    ("population of the town", "The town had 1,204 inhabitants at the last census."),
    ("director of the film", "The film was directed by a director who was born in 1951."),
    ("year of birth", "She was born on 4 March 1962."),
)
"""(query, snippet) pairs; the replayed search answers every query with the closest one."""


def lay_out(folder: Path, root: Path) -> None:
    """Create the folder's links and DVC settings, keeping those that are already correct."""
    for name in LINKED:
        if (root / name).exists():
            link(folder / name, root / name)
    write_if_changed(folder / ".dvc/config.local", LOCAL_CONFIG)


def link(place: Path, target: Path) -> None:
    """Make ``place`` a symbolic link to ``target``, replacing any previous file or link."""
    if place.is_symlink() and place.readlink() == target.absolute():
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    place.symlink_to(target.absolute())


def link_named_files(folder: Path, root: Path, params: Params, methods: list[str]) -> None:
    """Link the user's files and folders that the params name by relative path (a model, tasks, a template)."""
    for name in sorted(set(texts({key: params[key] for key in ("base", *methods)}, NO_INPUTS))):
        path = Path(name)
        named = len(path.parts) > 1 or path.suffix
        if not named or path.is_absolute() or ".." in path.parts or (folder / path).exists():
            continue
        if (root / path).exists():
            link(folder / path, root / path)


def make_chats(folder: Path) -> None:
    """Write word problems as chats in the format of plain SPIN's ``reformat``, to replace a profile's own data."""
    splits: tuple[Part, ...] = ("train", "test")
    for split in splits:
        problems = generate(12, seed=0, split=split, difficulty=Difficulty())
        rows = [
            make_row(problem.question, expert(problem, error_rate=0.0, key=SeedKey(0, str(index))), "")
            for index, problem in enumerate(problems)
        ]
        with aside(folder / CHATS / f"{STEM.format(split=split)}.jsonl") as part:
            write_rows_to(part, rows)


def make_snippets(folder: Path) -> None:
    """Write snippets for the replayed search."""
    rows = ({"query": query, "snippet": snippet, "source": "made"} for query, snippet in MADE_SNIPPETS)
    write_if_changed(folder / SNIPPETS, "".join(json.dumps(row) + "\n" for row in rows))


def port_of(folder: Path) -> int:
    """The port of the folder's local teacher; it stays the same, because params name it, unless it is now in use."""
    file = folder / "port"
    if file.is_file():
        known = int(file.read_text(encoding="utf-8"))
        if _free(known):
            return known
    port = free_port()
    write_text(file, f"{port}\n")
    return port


def write_if_changed(path: Path, text: str) -> None:
    """Write a file unless it already contains this text."""
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        write_text(path, text)


def _free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
