"""``make inspect`` runs in an environment with inspect_ai and without the main environment's packages."""

from __future__ import annotations

import re
import subprocess
import sys

from tests.support.repo_copy import ROOT

IMPORTED = """
import sys
import selfimprove.apps.page.inspect_log
from importlib.metadata import packages_distributions
known = packages_distributions()
print(*{one for name in sys.modules for one in known.get(name.partition(".")[0], ())})
"""


def test_the_exporter_imports_only_packages_of_its_environment() -> None:
    """An import of the page's reader of runs once ended ``make inspect`` with a traceback."""
    lock = (ROOT / "requirements/inspect.lock").read_text()
    there = {name.replace("_", "-").lower() for name in re.findall(r"^([\w.-]+)==", lock, re.MULTILINE)}
    command = [sys.executable, "-c", IMPORTED]
    imported = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout.split()
    needed = {name.replace("_", "-").lower() for name in imported} - {"setuptools"}  # an import hook of an environment
    assert "pydantic" in needed
    assert needed <= there
