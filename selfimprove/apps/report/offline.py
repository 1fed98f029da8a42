"""Makes the page of ``dvc plots show`` work without a network connection.

DVC's page loads Vega, Vega-Lite and Vega-Embed from a server. The wheel of ``vl-convert-python`` contains the same
three libraries. ``make setup`` writes them to ``.dvc/tmp``, from where the page's template (``.dvc/plots/page.html``)
loads them first, so that they are used if the server cannot be reached. ``make report`` writes them next to its own
page and loads only these, so that no server is contacted at all.
"""

import re
import sys
from pathlib import Path

from selfimprove.core.cli import one_sentence
from selfimprove.core.publish import write_text

LIBRARIES = "vega.js"
KEPT = Path(".dvc/tmp") / LIBRARIES
VEGA_LITE = "5.20"
"""The version that uses the schema (v5) named in DVC's templates and ours."""

GLOBALS = "window.vega = vega; window.vegaLite = vegaLite; window.vegaEmbed = vegaEmbed;"
"""The global names under which DVC's page uses the libraries."""

_REMOTE = re.compile(r'(?:\s*<!--.*?-->)?(?:\s*<script src="(?:https?://|\.\./)[^"]*"></script>)+')


def make_offline(page: Path) -> None:
    """Replace the page's remote scripts by one local file, ``vega.js`` next to it (900 kB)."""
    keep_libraries(page.with_name(LIBRARIES))
    local = f'\n    <script src="{LIBRARIES}"></script>'
    write_text(page, _REMOTE.sub(local, page.read_text(encoding="utf-8"), count=1))


def keep_libraries(file: Path = KEPT) -> None:
    """Write the libraries to a file, unless it exists."""
    if not file.is_file():
        from vl_convert import javascript_bundle

        write_text(file, javascript_bundle(GLOBALS, vl_version=VEGA_LITE))


@one_sentence()
def main() -> None:
    """Write the libraries for DVC's own page, and make the pages named on the command line work without a network."""
    keep_libraries()
    for page in sys.argv[1:]:
        make_offline(Path(page))


if __name__ == "__main__":
    main()
