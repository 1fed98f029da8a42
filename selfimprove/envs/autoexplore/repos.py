"""Repositories to explore: Python packages of this machine, or any folder, with the original's filter.

Dropped (docs/reflect-rl.md, L36): names that begin with a dot or an underscore; LICENSE, Makefile, conf.py, artwork,
requirements, ci, tests, examples, by whole name or stem; names that are not plain ASCII; links and special files; files
with suffixes other than ``ALLOWED_SUFFIXES``, unreadable ones, ones with fewer than 10 characters or less than 90 %
ASCII. Nothing is copied: a repository is a listing, shared by all episodes.
"""

from __future__ import annotations

import codecs
import os
import sysconfig
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import pydantic

from selfimprove.core.errors import UserError
from selfimprove.core.seeds import rng
from selfimprove.envs.autoexplore.actions import explorable
from selfimprove.envs.autoexplore.sandbox import shown
from selfimprove.envs.autoexplore.tree import Entry, Kind, Tree
from selfimprove.envs.autoexplore.truncation import ALLOWED_SUFFIXES

IGNORED = frozenset(("LICENSE", "Makefile", "conf.py", "artwork", "requirements", "ci", "tests", "examples"))
MIN_CHARACTERS = 10
MIN_ASCII = 0.9
LOOKED_AT = 1024 * 1024  # bytes of a file that the filter reads
CACHE = "__pycache__"
"""A folder that Python adds to a package when it first imports it, and which is therefore not counted."""

_NO_REPOSITORIES = frozenset(("site-packages", "dist-packages", CACHE, "test", "lib2to3", "idlelib"))


Dropped = Literal["hidden", "ignored", "not ASCII", "special", "suffix", "unreadable", "short", "little ASCII"]
"""Why the filter drops an entry: a name that begins with a dot or underscore, one of ``IGNORED``, and so on."""


@dataclass(frozen=True)
class Repo:
    """A repository. ``name``: the tasks' ``root``; ``files``: the files that can be identified, sorted.

    ``dropped``: number of entries dropped by the filter, by reason, without ``CACHE``; contents of a dropped folder are
    not counted.
    """

    name: str
    tree: Tree
    files: tuple[str, ...]
    dropped: Mapping[Dropped, int] = field(default_factory=dict, compare=False)

    @classmethod
    def open(cls, folder: Path | str, name: str | None = None) -> Repo:
        """Read and filter a folder.

        Raises:
            UserError: it cannot be listed, or nothing in it is left to explore.
        """
        repo, unreadable = filtered(folder, name)
        if not repo.files:
            blocked = ""
            if unreadable:
                blocked = f" ({len(unreadable)} of its files cannot be read; the first is {min(unreadable)!r})"
            raise UserError(
                f"{folder}: nothing to explore{blocked}; name a folder with readable text files "
                f"such as .py, .md or .csv that are not all tests or examples."
            )
        return repo


def filtered(folder: Path | str, name: str | None = None) -> tuple[Repo, list[str]]:
    """A folder after the filter, which may be empty, and the names of its unreadable files.

    Raises:
        UserError: it cannot be listed.
    """
    unreadable: list[str] = []
    dropped: Counter[Dropped] = Counter()

    def keep(path: Path, entry: str, kind: Kind) -> bool:
        reason = why_dropped(path, entry, kind)
        if reason is not None and entry != CACHE:
            dropped[reason] += 1
        if reason == "unreadable":
            unreadable.append(entry)
        return reason is None

    tree = Tree.scan(folder, keep)
    files = tuple(path for path in tree.files() if explorable(path.rpartition("/")[2], Entry("file")))
    counts = MappingProxyType(dict(sorted(dropped.items())))
    return Repo(name or shown(Path(tree.root).name) or "root", tree, files, counts), unreadable


def why_dropped(path: Path, name: str, kind: Kind) -> Dropped | None:
    """Why the filter drops an entry (the original's ``ignore``, corrected); None: it is kept."""
    if name[0] in "._":
        return "hidden"
    stem, suffix = os.path.splitext(name)
    if name in IGNORED or stem in IGNORED:
        return "ignored"
    if not (name.isascii() and name.isprintable()):
        return "not ASCII"
    if kind == "dir":
        return None
    if kind != "file":
        return "special"
    if suffix not in ALLOWED_SUFFIXES:
        return "suffix"
    try:
        text = _opening(path)
    except (OSError, UnicodeDecodeError):
        return "unreadable"
    text = text.replace("\r\n", "\n")  # one character, as for the original, which reads in text mode
    if len(text) < MIN_CHARACTERS:
        return "short"
    return None if len(text.encode("ascii", "ignore")) >= MIN_ASCII * len(text) else "little ASCII"


def _opening(path: Path) -> str:
    """The first ``LOOKED_AT`` bytes as text. Raises: OSError, or UnicodeDecodeError if it is not UTF-8."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        data = file.read(LOOKED_AT + 1)
    decoder = codecs.getincrementaldecoder("utf-8")()
    return decoder.decode(data[:LOOKED_AT], final=len(data) <= LOOKED_AT)


def open_repos(folder: Path | str) -> Mapping[str, Repo]:
    """The repositories in a folder, sorted by name: each subfolder with something to explore.

    A folder that itself contains files to explore, or whose subfolders contain none, is one repository.

    Raises:
        UserError: as ``Repo.open``.
    """
    whole = Repo.open(folder)
    if any("/" not in path for path in whole.files):
        return MappingProxyType({whole.name: whole})
    tops = sorted({path.partition("/")[0] for path in whole.files})
    return MappingProxyType({top: Repo.open(Path(whole.tree.root) / top, top) for top in tops})


def installed_repos(
    limit: int, seed: int, min_files: int = 5, max_files: int = 300, sources: tuple[Path, ...] | None = None
) -> Mapping[str, Repo]:
    """``limit`` Python packages of this machine, drawn by ``seed``, sorted by name.

    ``min_files``, ``max_files``: the range of explorable files per package. ``sources``: folders of packages; by
    default this Python's installed packages and standard library, so the draw depends on what is installed.

    Raises:
        UserError: there are fewer than ``limit`` such packages.
    """
    found: dict[str, Path] = {}
    for source in sources if sources is not None else _python_folders():
        for folder in sorted(source.iterdir()) if source.is_dir() else []:
            if folder.name.isidentifier() and folder.name not in _NO_REPOSITORIES and folder.is_dir():
                found.setdefault(folder.name, folder)
    names = sorted(name for name in found if name[0] != "_")
    rng("autoexplore repositories", seed).shuffle(names)
    drawn: dict[str, Repo] = {}
    for name in names:
        if len(drawn) == limit:
            break
        if min_files <= _count(found[name], max_files) <= max_files:
            try:
                repo = Repo.open(found[name], name)
            except UserError:
                continue
            if min_files <= len(repo.files):
                drawn[name] = repo
    if len(drawn) < limit:
        raise UserError(
            f"only {len(drawn)} of the Python packages on this machine have {min_files} to {max_files} files to "
            f"explore, but {limit} are requested; request fewer or name a folder of repositories."
        )
    return MappingProxyType(dict(sorted(drawn.items())))


def _python_folders() -> tuple[Path, ...]:
    """The folder of the installed packages and that of the standard library.

    The former is where pydantic is: an environment beside the main one (Ray's) adds packages in a folder of its own.
    """
    return Path(pydantic.__file__).parents[1], Path(sysconfig.get_paths()["stdlib"])


def _count(folder: Path, most: int) -> int:
    """Number of files with explorable names; stops above ``most``, so that large packages cost little."""
    count = 0
    for _, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name[0] not in "._" and name not in IGNORED]
        count += sum(name[0] not in "._" and name.endswith(ALLOWED_SUFFIXES) for name in files)
        if count > most:
            break
    return count
