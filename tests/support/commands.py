"""Runs a command line of the package in this process, as ``python -m`` would."""

from __future__ import annotations

import pytest
import typer

from selfimprove.core import cli


def ends_with(app: typer.Typer, *words: object) -> int:
    """Run ``app`` with these arguments; returns its exit code."""
    with pytest.raises(SystemExit) as ended:
        cli.run(app, [str(word) for word in words])
    return int(ended.value.code or 0)
