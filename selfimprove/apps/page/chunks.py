"""Data of the page, in files that a page opened from a disk can load.

A browser lets no script read other files of the disk, but it runs them: so a chunk is a script that hands the page one
string, gzipped JSON in base64 ::

    chunk("rise-iter2-evaluation-0","H4sIAAAA…");

and ``static/page.js`` unpacks it when a view asks for it.
"""

import base64
import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from selfimprove.apps.page.run import as_json

BYTES = 1 << 20
"""About so many bytes of JSON in a chunk of records."""


def write_chunk(folder: Path, name: str, value: Any) -> None:
    """Write one chunk, ``<name>.js``."""
    write_chunk_text(folder, name, as_json(value))


def write_chunk_text(folder: Path, name: str, text: str) -> None:
    """As ``write_chunk``, of JSON that is text already."""
    packed = base64.b64encode(gzip.compress(text.encode("utf-8", "surrogatepass"), 6, mtime=0)).decode()
    (folder / f"{name}.js").write_text(f"chunk({json.dumps(name)},{json.dumps(packed)});\n", encoding="ascii")


def write_records(folder: Path, name: str, records: Iterable[Any], size: int = BYTES) -> list[int]:
    """Write records to chunks ``<name>-0.js``, ``<name>-1.js``, …

    Returns:
        How many records come before each chunk.
    """
    starts: list[int] = []
    lines: list[str] = []
    count = held = 0

    def flush() -> None:
        write_chunk_text(folder, f"{name}-{len(starts)}", "[" + ",".join(lines) + "]")
        starts.append(count - len(lines))

    for record in records:
        line = as_json(record)
        if lines and held + len(line) > size:
            flush()
            lines, held = [], 0
        lines.append(line)
        held += len(line)
        count += 1
    if lines:
        flush()
    return starts
