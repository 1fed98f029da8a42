"""AutoExplore with labels: unlabelled actions are counted, and the command that a text names is executed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from selfimprove.envs.autoexplore.env import AutoExplore
from selfimprove.envs.autoexplore.listed import EnumeratedAutoExplore
from selfimprove.envs.autoexplore.repos import Repo
from selfimprove.envs.labels import LABELS
from tests.envs.autoexplore.conftest import task_for


@pytest.fixture
def crowded(make_folder: Callable[[str, dict[str, str]], Path]) -> EnumeratedAutoExplore:
    """A repository whose folder core has 87 actions: one to go up and two per file."""
    files = {f"core/m{number:02}.py": "x = 1\n" * 9 for number in range(43)}
    repo = Repo.open(make_folder("eventlib", files | {"a.md": "# About it\n"}))
    game = AutoExplore([task_for("core/m00.py")], {"eventlib": repo}, labels=LABELS["single"])
    return EnumeratedAutoExplore(game, LABELS["single"], {"depth1": frozenset([0])})


def test_actions_without_a_label_are_counted(crowded: EnumeratedAutoExplore) -> None:
    assert crowded.reset(0).unlisted == 0
    crowded.step("2")  # cd core
    state = crowded.state()
    assert (len(state.labels), state.unlisted) == (62, 25)
    crowded.step("1")  # cat m00.py: a file that was read has one action fewer
    assert crowded.state().unlisted == 24
    crowded.step("1")  # id m00.py
    assert crowded.state().unlisted == 0


@pytest.mark.parametrize(
    ("text", "command"),
    [("2", "cd core"), (" 2 ", "cd core"), ("2.", "cd core"), ("2. cat", "cd core"), ("cat a.md", "cat a.md"),
     ("02", None), ("Choice 2", None), ("cat b.md", None), ("", None)],
)  # fmt: skip
def test_the_command_that_a_text_names_is_executed(
    crowded: EnumeratedAutoExplore, text: str, command: str | None
) -> None:
    crowded.reset(0)
    assert crowded.named(text) == command
    played = crowded.step(text)
    assert played.valid == (command is not None)
    assert played.output.startswith(f"Executing: {command}\n" if command else "Warning")
