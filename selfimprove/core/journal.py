"""An append-only journal of finished work, from which a killed stage resumes.

Each entry is one line: a checksum, a space, and ``{"key": ..., "value": ...}`` as JSON. A line is written with a single
``write`` call, so that a process killed at any moment leaves at most a truncated last line, which is dropped on
reading. A line that does not match its checksum is skipped and counted; only its work is repeated. ``fsync`` runs at
most twice a second, which bounds the loss after a power cut.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import sqlite3
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Any

FSYNC_SECONDS = 0.5
_OPENING = re.compile(rb"[0-9a-f]{0,15}|[0-9a-f]{16}(?: \{?)?")
"""The first 18 bytes of a line, or fewer of a truncated line."""


class Journal:
    """Finished entries by key, including those of earlier runs in ``path`` and ``others``; a key is written once.

    The file positions of entries are kept in a temporary SQLite table that spills to disk, so that memory does not grow
    with the number of entries. Values are read from the file on access.
    """

    def __init__(self, path: Path, others: Sequence[Path] = (), *, shared: bool = False) -> None:
        """``shared``: other processes may write to ``path`` at the same time; their later entries are not read."""
        self.path, self._shared = path, shared
        self._places = sqlite3.connect("", check_same_thread=False)
        self._places.execute("PRAGMA journal_mode = OFF")
        self._places.execute("CREATE TABLE places (key BLOB PRIMARY KEY, file INTEGER, start INTEGER, length INTEGER)")
        self._others: list[int] = []
        self.damaged = 0
        for other in others:
            if other.is_file():
                self._others.append(os.open(other, os.O_RDONLY))
                self._replay(self._others[-1])
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        with self._alone():
            os.ftruncate(self._file, self._replay(self._file))
        self._synced = time.monotonic()
        if self.damaged:
            print(f"{path}: {self.damaged} damaged lines were skipped; their work is repeated.", file=sys.stderr)
        self.seconds = 0.0

    def __len__(self) -> int:
        return self._places.execute("SELECT COUNT(*) FROM places").fetchone()[0]

    def __contains__(self, key: str) -> bool:
        return self._place(key) is not None

    def __getitem__(self, key: str) -> Any:
        place = self._place(key)
        if place is None:
            raise KeyError(key)
        file, start, length = place
        return json.loads(os.pread(file, length, start).partition(b" ")[2])["value"]

    def add(self, key: str, value: Any) -> None:
        """Record one finished entry.

        Raises:
            OSError: the disk is full or unavailable; earlier entries are unaffected.
        """
        if key in self:
            return
        started = time.monotonic()
        text = json.dumps({"key": key, "value": value}, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
        data = _checksum(text) + b" " + text + b"\n"
        with self._alone():
            position = os.lseek(self._file, 0, os.SEEK_END)
            written = os.write(self._file, data)
            if written != len(data):
                os.ftruncate(self._file, position)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
        self._found(key, self._file, position, len(data))
        if time.monotonic() - self._synced > FSYNC_SECONDS:
            os.fsync(self._file)
            self._synced = time.monotonic()
        self.seconds += time.monotonic() - started

    def close(self) -> None:
        """Flush everything to disk and close the files."""
        self._places.close()
        os.fsync(self._file)
        for file in (self._file, *self._others):
            os.close(file)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep the other processes from writing, if there may be any."""
        if self._shared:
            fcntl.flock(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            if self._shared:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def _place(self, key: str) -> tuple[int, int, int] | None:
        """File descriptor, start offset and length of an entry in bytes."""
        found = self._places.execute("SELECT file, start, length FROM places WHERE key = ?", (_digest(key),))
        return found.fetchone()

    def _found(self, key: str, file: int, start: int, length: int) -> None:
        self._places.execute("INSERT OR REPLACE INTO places VALUES (?, ?, ?, ?)", (_digest(key), file, start, length))

    def _replay(self, file: int) -> int:
        """Index a file's entries; returns its length in bytes without a truncated last line."""
        whole = 0
        with open(file, "rb", closefd=False) as lines:
            for line in lines:
                if not line.endswith(b"\n"):
                    break
                checksum, _, text = line[:-1].partition(b" ")
                if checksum == _checksum(text):
                    self._found(json.loads(text)["key"], file, whole, len(line))
                else:
                    self.damaged += 1
                whole += len(line)
        return whole


def begins_as_journal(path: Path) -> bool:
    """Whether a file is empty or starts like a (possibly truncated) line of a journal; other files are not journals."""
    with path.open("rb") as file:
        return _OPENING.fullmatch(file.read(18)) is not None


def _digest(key: str) -> bytes:
    return blake2b(key.encode("utf-8"), digest_size=16).digest()


def _checksum(text: bytes) -> bytes:
    return blake2b(text, digest_size=8).hexdigest().encode("ascii")
