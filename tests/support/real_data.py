"""The real data files, which are optional: a test that asks for one is skipped where it is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from selfimprove.core.sources import SOURCES, load_sources, mirror_folder
from tests.support.repo_copy import ROOT

BESIDE = ROOT.parent / "shared" / "data"
"""The mirror if DATA_MIRROR is unset: a folder beside the repository."""


def real(name: str) -> Path:
    """The file ``name`` of the mirror; skips the test if there is none."""
    path = (mirror_folder() or BESIDE) / name
    if not path.is_file():
        pytest.skip(f"{path} does not exist; set DATA_MIRROR to a folder that contains {name} to run this test.")
    return path


def real_sources(*names: str) -> Path:
    """The mirror, if it has all files of these declared data sources; skips the test otherwise."""
    sources = load_sources(ROOT / SOURCES)
    for name in names:
        for file in sources[name].files:
            real(file.path)
    return mirror_folder() or BESIDE
