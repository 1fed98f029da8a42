"""Makes the page of ``dvc plots show`` open without a network.

DVC's page loads Vega, Vega-Lite and Vega-Embed from a server. ``vl-convert-python`` brings the same three libraries in
its wheel. ``make setup`` writes them to ``.dvc/tmp``, where the page's template (``.dvc/plots/page.html``) looks first:
where the server is out of reach, these are used. ``make report`` writes them beside its own page and points it there,
so that it asks no server at all.
"""

import re
import sys
from pathlib import Path

from selfimprove.core.publish import write_text

LIBRARIES = "vega.js"
KEPT = Path(".dvc/tmp") / LIBRARIES
VEGA_LITE = "5.20"
"""The version whose schema (v5) DVC's templates and ours name."""

GLOBALS = "window.vega = vega; window.vegaLite = vegaLite; window.vegaEmbed = vegaEmbed;"
"""Under these names DVC's page calls the libraries."""

_REMOTE = re.compile(r'(?:\s*<!--.*?-->)?(?:\s*<script src="(?:https?://|\.\./)[^"]*"></script>)+')


def make_offline(page: Path) -> None:
    """Replace the page's remote scripts by one local file, ``vega.js`` beside it (900 kB)."""
    keep_libraries(page.with_name(LIBRARIES))
    local = f'\n    <script src="{LIBRARIES}"></script>'
    write_text(page, _REMOTE.sub(local, page.read_text(encoding="utf-8"), count=1))


def keep_libraries(file: Path = KEPT) -> None:
    """Write the libraries to a file, once."""
    if not file.is_file():
        from vl_convert import javascript_bundle

        write_text(file, javascript_bundle(GLOBALS, vl_version=VEGA_LITE))


if __name__ == "__main__":
    keep_libraries()
    for page in sys.argv[1:]:
        make_offline(Path(page))
