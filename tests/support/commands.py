"""Runs one of our command lines in this process, as ``python -m`` would."""

from __future__ import annotations

import pytest
import typer

from selfimprove.core import cli


def ends_with(app: typer.Typer, *words: object) -> int:
    """The command's exit code."""
    with pytest.raises(SystemExit) as ended:
        cli.run(app, [str(word) for word in words])
    return int(ended.value.code or 0)
