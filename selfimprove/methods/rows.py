"""Where a row of the results table lies, below ``models/<method>`` and ``results/<method>``.

One stage evaluates all entries of a group, which keeps the graph small; what it writes is then one folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from selfimprove.core.params import Section

GROUPS = ("controls", "agents")
"""Keys of a method's section whose entries are evaluated together; no row may have such a name."""


def place(params: Section, row: str) -> str:
    """``controls/more_sft`` for a control, ``agents/chance`` for an agent; the row's name for all others."""
    return next((f"{group}/{row}" for group in GROUPS if row in group_of(params, group)), row)


def group_of(params: Section, name: str) -> Mapping[str, Any]:
    """The entries of a group; none if the method has no such group, or ``name`` is none."""
    entries: Mapping[str, Any] = getattr(params, name, {}) if name in GROUPS else {}
    return entries
