"""Results of many episodes, in the order of their tasks: in memory if there are few, else in a file."""

import os
import pickle
from array import array
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, TypeVar, overload

E = TypeVar("E")

MOST_HELD = 10_000
"""Maximum number of results in memory."""

PLACE = Path(".scratch")
"""Folder of the file, if it exists (/tmp may be in memory). The file is unlinked, so it ends with the process."""


class Results(Sequence[E]):
    """A sequence that is filled in any order. If ``count`` exceeds ``most``, each access unpickles a new object."""

    def __init__(self, count: int, most: int = MOST_HELD) -> None:
        self._count = count
        self._held: list[Any] = [None] * count if count <= most else []
        self._file: IO[bytes] | None = None
        if count > most:
            self._file = TemporaryFile(dir=PLACE if PLACE.is_dir() else None, buffering=0)  # noqa: SIM115
            self._starts, self._lengths, self._end = array("q", bytes(8 * count)), array("q", bytes(8 * count)), 0

    def put(self, index: int, result: E) -> None:
        """Set one result."""
        if self._file is None:
            self._held[index] = result
            return
        data = pickle.dumps(result, protocol=5)
        self._starts[index], self._lengths[index] = self._end, len(data)
        self._end += self._file.write(data)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> E: ...

    @overload
    def __getitem__(self, index: slice) -> list[E]: ...

    def __getitem__(self, index: int | slice) -> E | list[E]:
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(self._count))]
        if not -self._count <= index < self._count:
            raise IndexError(index)
        if self._file is None:
            return self._held[index]  # type: ignore[no-any-return]
        data = os.pread(self._file.fileno(), self._lengths[index], self._starts[index])
        return pickle.loads(data)  # trusted: written by this process

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)
