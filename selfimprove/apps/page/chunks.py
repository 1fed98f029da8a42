"""The page's data, in files that can be loaded by a page opened from disk.

Browsers do not allow such a page to read files, but they do run its scripts. A chunk is therefore a script that passes
the page one string, gzipped JSON in base64 ::

    chunk("rise-iter2-evaluation-0","H4sIAAAA…");

which ``static/page.js`` decompresses when a view needs it.
"""

import base64
import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

BYTES = 1 << 20
"""Approximate size of a chunk of records in bytes of JSON."""


def write_chunk(folder: Path, name: str, value: Any) -> None:
    """Write one chunk, ``<name>.js``."""
    _write(folder, name, _as_json(value))


def _write(folder: Path, name: str, text: str) -> None:
    packed = base64.b64encode(gzip.compress(text.encode("utf-8", "surrogatepass"), 6, mtime=0)).decode()
    (folder / f"{name}.js").write_text(f"chunk({json.dumps(name)},{json.dumps(packed)});\n", encoding="ascii")


def write_records(folder: Path, name: str, records: Iterable[Any], size: int = BYTES) -> list[int]:
    """Write records to chunks ``<name>-0.js``, ``<name>-1.js``, …

    Returns:
        For each chunk, the number of records before it.
    """
    starts: list[int] = []
    lines: list[str] = []
    count = held = 0

    def flush() -> None:
        _write(folder, f"{name}-{len(starts)}", "[" + ",".join(lines) + "]")
        starts.append(count - len(lines))

    for record in records:
        line = _as_json(record)
        if lines and held + len(line) > size:
            flush()
            lines, held = [], 0
        lines.append(line)
        held += len(line)
        count += 1
    if lines:
        flush()
    return starts


def _as_json(value: Any) -> str:
    """Compact JSON."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
