"""Makes the page of ``dvc plots show`` open without a network.

DVC's page loads Vega, Vega-Lite and Vega-Embed from a server. ``vl-convert-python`` brings the same three libraries in
its wheel; this module writes them beside the page, once, and points the page at that file.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from selfimprove.core.publish import write_text

LIBRARIES = "vega.js"
VEGA_LITE = "5.20"
"""The version whose schema (v5) DVC's templates and ours name."""

GLOBALS = "window.vega = vega; window.vegaLite = vegaLite; window.vegaEmbed = vegaEmbed;"
"""Under these names DVC's page calls the libraries."""

_REMOTE = re.compile(r'(?:\s*<script src="https?://[^"]*"></script>)+')


def make_offline(page: Path) -> None:
    """Replace the page's remote scripts by one local file, ``vega.js`` beside it (900 kB)."""
    libraries = page.with_name(LIBRARIES)
    if not libraries.is_file():
        from vl_convert import javascript_bundle

        write_text(libraries, javascript_bundle(GLOBALS, vl_version=VEGA_LITE))
    local = f'\n    <script src="{LIBRARIES}"></script>'
    write_text(page, _REMOTE.sub(local, page.read_text(encoding="utf-8"), count=1))


if __name__ == "__main__":
    make_offline(Path(sys.argv[1]))
