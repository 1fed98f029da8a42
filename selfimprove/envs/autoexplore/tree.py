"""A folder as AutoExplore sees it: an immutable listing, what an episode leaves out of it, and reads that stay inside.

Listing a folder once (``Tree.scan``) replaces the copy that the original makes for every episode: nothing here can
write, so all episodes share one listing, and a ``View`` leaves entries out without touching anything.

Paths inside a tree are relative to its root, separated by "/", without "." and ".." ("" is the root itself).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal, NamedTuple

from selfimprove.core.errors import UserError
from selfimprove.core.seeds import rng

MAX_ENTRIES = 200_000  # of one tree; a folder beyond that is no repository to explore
MAX_DEPTH = 64  # folders below that are listed as empty

Kind = Literal["dir", "file", "link", "other"]


class Entry(NamedTuple):
    """One name in a folder. ``target``: where a link leads, inside the tree; None: it is no link.

    Links that lead to nothing or in circles are ``other``, as are FIFOs, sockets and devices. Links that lead out of
    the tree are no entries.
    """

    kind: Kind
    target: str | None = None


Keep = Callable[[Path, str, Kind], bool]
"""(absolute path, name, kind) -> whether an entry belongs to the tree. Asked once an entry, parents first."""

_NOTHING: Mapping[str, Entry] = MappingProxyType({})


def no_dot_entries(path: Path, name: str, kind: Kind) -> bool:
    """What the original copies: everything but names that begin with a dot."""
    return not name.startswith(".")


@dataclass(frozen=True)
class Tree:
    """A folder's listing, taken once. ``folders``: path of each folder -> its entries, sorted by name."""

    root: str
    folders: Mapping[str, Mapping[str, Entry]]
    _hide: re.Pattern[str] = field(repr=False, compare=False)

    @classmethod
    def scan(cls, root: Path | str, keep: Keep = no_dot_entries) -> Tree:
        """List a folder; links are looked at, never entered, so loops can't catch it.

        Raises:
            UserError: it is no folder, can't be listed, or holds too much (``MAX_ENTRIES``).
        """
        try:
            real = os.path.realpath(root, strict=True)
            os.listdir(real)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not a path"
            raise UserError(f"{root}: cannot be listed ({reason}); name a readable folder.") from None
        folders: dict[str, Mapping[str, Entry]] = {}
        pending, count = [("", 0)], 0
        while pending:
            path, depth = pending.pop()
            found = _list(real, path, keep) if depth < MAX_DEPTH else {}
            folders[path] = MappingProxyType(found)
            count += len(found)
            if count > MAX_ENTRIES:
                raise UserError(f"{root}: contains more than {MAX_ENTRIES:,} entries; name a smaller folder.")
            pending.extend((join(path, name), depth + 1) for name, entry in found.items() if entry.kind == "dir")
        # the root's own path, also behind file://, not part of a longer name; what follows a slash stays
        hide = re.compile(r"(?<![\w.~-])(?<!(?<!/)/)" + re.escape(real.rstrip("/") or "\0") + r"(/|(?![\w.-]))")
        return cls(real, MappingProxyType(folders), hide)

    def hide_root(self, text: str) -> str:
        """The text with paths below the root made relative, and the root itself a dot."""
        return self._hide.sub(lambda match: "" if match[1] else ".", text) if self.root in text else text

    def files(self) -> list[str]:
        """Every regular file, sorted."""
        found = [
            join(folder, name)
            for folder, entries in self.folders.items()
            for name, entry in entries.items()
            if entry.kind == "file"
        ]
        return sorted(found)

    def is_file(self, path: str) -> bool:
        """Whether the listing has a regular file at this path (links don't count)."""
        folder, _, name = path.rpartition("/")
        entry = self.folders.get(folder, _NOTHING).get(name)
        return entry is not None and entry.kind == "file"

    def read(self, path: str, limit: int, *, tail: bool = False) -> tuple[bytes, bool]:
        """The first (``tail``: last) ``limit`` bytes of a regular file, and whether that is all of it.

        Opens every folder on the way and the file without following links, so that a tree that was changed since it
        was listed can't lead the read elsewhere; FIFOs and devices are never waited for.

        Raises:
            OSError: it is gone, became something else, or may not be read.
        """
        folder, _, name = path.rpartition("/")
        descriptor = _open_folder(self.root, folder)
        try:
            if not stat.S_ISREG(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode):
                raise OSError(0, "Not a regular file")
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            file = os.open(name, flags, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        with open(file, "rb", buffering=0) as handle:
            status = os.fstat(file)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(0, "Not a regular file")
            if tail and status.st_size > limit:
                handle.seek(status.st_size - limit)
            parts, left = [], limit + 1
            while left > 0 and (part := handle.read(left)):
                parts.append(part)
                left -= len(part)
        data = b"".join(parts)
        complete = len(data) <= limit and not (tail and status.st_size > limit)
        return data[:limit], complete


def _open_folder(root: str, path: str) -> int:
    """A descriptor of a folder of the tree; no folder on the way below the root is reached through a link.

    Raises:
        OSError: it is gone, or became something else.
    """
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for folder in path.split("/") if path else []:
        try:
            below = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = below
    return descriptor


def _list(root: str, path: str, keep: Keep) -> dict[str, Entry]:
    """One folder's entries, sorted; a folder that can't be listed has none."""
    found: dict[str, Entry] = {}
    try:
        descriptor = _open_folder(root, path)
    except OSError:
        return found
    try:
        with os.scandir(descriptor) as entries:
            for item in entries:
                kind: Kind = "other"
                target = None
                where = os.path.join(root, path, item.name)
                if item.is_symlink():
                    kind, target = _follow(root, where)
                elif item.is_dir(follow_symlinks=False):
                    kind = "dir"
                elif item.is_file(follow_symlinks=False):
                    kind = "file"
                kept = keep(Path(where), item.name, kind)
                if kept and (kind != "link" or target is not None):  # links that lead outside are never listed
                    found[item.name] = Entry(kind, target)
    except OSError:
        pass
    finally:
        os.close(descriptor)
    return dict(sorted(found.items()))


def _follow(root: str, link: str) -> tuple[Kind, str | None]:
    """What a link is, and where it leads, relative to the root; None: outside, or nowhere."""
    try:
        real = os.path.realpath(link, strict=True)
    except OSError:
        return "other", None
    prefix = root.rstrip("/") + "/"
    if (real + "/").startswith(prefix):
        return "link", real[len(prefix) :]
    return "link", None


@dataclass(frozen=True)
class Leaveout:
    """What an episode leaves out: each entry with ``probability``, but ``kept`` paths and their ancestors never.

    ``key`` names the draws; a folder's draws depend on nothing else, so no order and no copy matters.
    """

    probability: float
    key: tuple[object, ...]
    kept: frozenset[str]

    @classmethod
    def around(cls, targets: Iterable[str], probability: float, *key: object) -> Leaveout:
        """Keep the targets and every folder on the way to them."""
        kept: set[str] = set()
        for target in targets:
            parts = target.split("/")
            kept.update("/".join(parts[: i + 1]) for i in range(len(parts)))
        return cls(probability, key, frozenset(kept))


class View:
    """A tree as one episode sees it. Immutable but for a cache; cheap to make."""

    def __init__(self, tree: Tree, leaveout: Leaveout | None = None) -> None:
        self.tree = tree
        self._leaveout = leaveout if leaveout and leaveout.probability > 0 else None
        self._cache: dict[str, Mapping[str, Entry]] = {}

    def entries(self, folder: str) -> Mapping[str, Entry]:
        """What a folder shows, sorted by name; nothing for a path that is no folder."""
        listed = self.tree.folders.get(folder, _NOTHING)
        if self._leaveout is None:
            return listed
        if folder not in self._cache:
            self._cache[folder] = self._leave_out(folder, listed, self._leaveout)
        return self._cache[folder]

    def _leave_out(self, folder: str, listed: Mapping[str, Entry], leaveout: Leaveout) -> Mapping[str, Entry]:
        draws = rng("autoexplore leaveout", *leaveout.key, ascii(folder))
        shown = {}
        for name, entry in listed.items():
            left_out = draws.random() < leaveout.probability  # one draw an entry, whether or not it is needed
            if not left_out or join(folder, name) in leaveout.kept:
                shown[name] = entry
        return MappingProxyType(shown)


def join(folder: str, name: str) -> str:
    """The path of a name in a folder."""
    return f"{folder}/{name}" if folder else name
