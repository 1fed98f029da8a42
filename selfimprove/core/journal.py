"""An append-only journal of finished work: a killed stage does not repeat what it had finished.

One line an entry: a checksum, a space, and ``{"key": ..., "value": ...}`` as JSON. It is written with a single
``write`` call, so that a process killed at any moment leaves at most a torn last line, which is dropped on reading. A
line that does not match its checksum is left out and counted: its work alone is done again. Power cuts are covered by
``fsync``, at most twice a second.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Any

FSYNC_SECONDS = 0.5


class Journal:
    """Finished entries by key; a key is written once, and reads see what earlier runs wrote, here and in ``others``."""

    def __init__(self, path: Path, others: Sequence[Path] = ()) -> None:
        self.path = path
        self.entries: dict[str, Any] = {}
        self.damaged = 0
        for other in others:
            self._replay(other)
        whole = self._replay(path)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        os.ftruncate(self._file, whole)
        self._synced = time.monotonic()
        self.resumed = len(self.entries)
        if self.damaged:
            print(f"{path}: {self.damaged} damaged lines were left out; their work is done again.", file=sys.stderr)
        self.seconds = 0.0

    def __contains__(self, key: str) -> bool:
        return key in self.entries

    def __getitem__(self, key: str) -> Any:
        return self.entries[key]

    def add(self, key: str, value: Any) -> None:
        """Record one finished entry.

        Raises:
            OSError: the disk is full or gone; nothing before this entry is affected.
        """
        if key in self.entries:
            return
        started = time.monotonic()
        text = json.dumps({"key": key, "value": value}, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
        data = _checksum(text) + b" " + text + b"\n"
        position = os.lseek(self._file, 0, os.SEEK_END)
        written = os.write(self._file, data)
        if written != len(data):
            os.ftruncate(self._file, position)
            raise OSError(28, os.strerror(28), str(self.path))
        self.entries[key] = value
        if time.monotonic() - self._synced > FSYNC_SECONDS:
            os.fsync(self._file)
            self._synced = time.monotonic()
        self.seconds += time.monotonic() - started

    def close(self) -> None:
        """Make everything durable and release the file."""
        os.fsync(self._file)
        os.close(self._file)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _replay(self, path: Path) -> int:
        """Read back the entries; returns the length in bytes without a torn last line."""
        if not path.is_file():
            return 0
        whole = 0
        for raw in path.read_bytes().split(b"\n")[:-1]:
            whole += len(raw) + 1
            checksum, _, text = raw.partition(b" ")
            if checksum != _checksum(text):
                self.damaged += 1
                continue
            row = json.loads(text)
            self.entries[row["key"]] = row["value"]
        return whole


def _checksum(text: bytes) -> bytes:
    return blake2b(text, digest_size=8).hexdigest().encode("ascii")
