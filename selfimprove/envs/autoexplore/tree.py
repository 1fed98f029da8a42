"""A folder as AutoExplore sees it: an immutable listing, an episode's left-out entries, and confined reads.

Listing a folder once (``Tree.scan``) replaces the copy that the original makes for every episode: nothing here can
write, so all episodes share one listing, and a ``View`` omits entries without changing anything.

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

MAX_ENTRIES = 200_000  # of one tree; a larger folder is not a repository to explore
MAX_DEPTH = 64  # deeper folders are listed as empty

Kind = Literal["dir", "file", "link", "other"]


class Entry(NamedTuple):
    """One name in a folder. ``target``: a link's target inside the tree; None: not a link.

    Broken and circular links are ``other``, like FIFOs, sockets and devices. Links that lead out of the tree are not
    listed.
    """

    kind: Kind
    target: str | None = None


Keep = Callable[[Path, str, Kind], bool]
"""(absolute path, name, kind) -> whether an entry belongs to the tree. Called once per entry, parents first."""

_NOTHING: Mapping[str, Entry] = MappingProxyType({})


def _respelt(path: str) -> str:
    """A pattern of an absolute path in which slashes may be repeated and followed by "./"."""
    parts = "".join(r"/+(?:\./+)*" + re.escape(part) for part in path.split("/") if part)
    return parts + r"(?=/|\Z)"


def no_dot_entries(path: Path, name: str, kind: Kind) -> bool:
    """The entries that the original copies: all except names that begin with a dot."""
    return not name.startswith(".")


@dataclass(frozen=True)
class Tree:
    """A folder's listing, taken once. ``folders``: path of each folder -> its entries, sorted by name.

    ``root`` is the folder's real path. It is also recognised and hidden as it was given, with its links.
    """

    root: str
    folders: Mapping[str, Mapping[str, Entry]]
    _spellings: tuple[str, ...] = field(repr=False, compare=False)
    _hide: re.Pattern[str] = field(repr=False, compare=False)
    _prefix: re.Pattern[str] = field(repr=False, compare=False)

    @classmethod
    def scan(cls, root: Path | str, keep: Keep = no_dot_entries) -> Tree:
        """List a folder; links are inspected but never entered, so loops are harmless.

        Raises:
            UserError: it is not a folder, cannot be listed, or has more than ``MAX_ENTRIES`` entries.
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
        spellings = tuple(sorted({real.rstrip("/"), os.path.abspath(root).rstrip("/")}, key=len, reverse=True))
        # The root's path, also after file:// or an option such as -I, but not as part of a longer name; text after a
        # slash is kept, and so is the full stop that ends a sentence.
        before = r"(?:(?<![\w.~-])(?<!(?<!/)/)|(?<=[\s\"'\[,]-[A-Za-z]))"
        named = "|".join(re.escape(one) for one in spellings if one) or "\0"
        hide = re.compile(rf"{before}(?:{named})(/|(?![\w-]|\.\w))")
        prefix = re.compile("|".join(_respelt(one) for one in spellings))
        return cls(real, MappingProxyType(folders), spellings, hide, prefix)

    def hide_root(self, text: str) -> str:
        """The text with paths below the root made relative, and the root itself replaced by a dot."""
        if not any(one in text for one in self._spellings):
            return text
        return self._hide.sub(lambda match: "" if match[1] else ".", text)

    def below_root(self, path: str) -> str | None:
        """The part of an absolute path after the root's; None if it begins with another path."""
        match = self._prefix.match(path)
        return path[match.end() :] if match else None

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
        """Whether the listing has a regular file at this path (links do not count)."""
        folder, _, name = path.rpartition("/")
        entry = self.folders.get(folder, _NOTHING).get(name)
        return entry is not None and entry.kind == "file"

    def read(self, path: str, limit: int, *, tail: bool = False) -> tuple[bytes, bool]:
        """The first (``tail``: last) ``limit`` bytes of a regular file, and whether that is the whole file.

        Opens the file and every folder on the path without following links, so that a tree changed since the listing
        cannot redirect the read; never blocks on FIFOs and devices.

        Raises:
            OSError: it no longer exists, is no longer a regular file, or is not readable.
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
    """A descriptor of a folder of the tree, opened without following any link below the root.

    Raises:
        OSError: it no longer exists, or is no longer a folder.
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
    """One folder's entries, sorted; none if it cannot be listed."""
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
    """A link's kind, and its target relative to the root; None: outside the tree or broken."""
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
    """An episode's left-out entries: each with ``probability``, except ``kept`` paths and their ancestors.

    ``key`` and the folder determine a folder's draws, so they are independent of order and copies.
    """

    probability: float
    key: tuple[object, ...]
    kept: frozenset[str]

    @classmethod
    def around(cls, targets: Iterable[str], probability: float, *key: object) -> Leaveout:
        """Keep the targets and every folder on the path to them."""
        kept: set[str] = set()
        for target in targets:
            parts = target.split("/")
            kept.update("/".join(parts[: i + 1]) for i in range(len(parts)))
        return cls(probability, key, frozenset(kept))


class View:
    """A tree as seen by one episode. Immutable except for a cache, and cheap to create."""

    def __init__(self, tree: Tree, leaveout: Leaveout | None = None) -> None:
        self.tree = tree
        self._leaveout = leaveout if leaveout and leaveout.probability > 0 else None
        self._cache: dict[str, Mapping[str, Entry]] = {}

    def entries(self, folder: str) -> Mapping[str, Entry]:
        """The visible entries of a folder, sorted by name; empty for a path that is not a folder."""
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
            left_out = draws.random() < leaveout.probability  # one draw per entry, whether or not it is kept
            if not left_out or join(folder, name) in leaveout.kept:
                shown[name] = entry
        return MappingProxyType(shown)


def join(folder: str, name: str) -> str:
    """The path of a name in a folder."""
    return f"{folder}/{name}" if folder else name
