"""The command ``python -m bench``: its help and its parts (their measurements are tested beside what they measure)."""

import sys
from types import SimpleNamespace

import pytest

from bench import load
from bench.__main__ import main


def test_help_lists_the_parts_and_measures_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["bench", "--help"])
    with pytest.raises(SystemExit, match="0"):
        main()
    assert "rollouts, search" in capsys.readouterr().out


def test_an_unknown_part_or_argument_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BENCH", "rollouts,speed")
    for arguments, said in (([], "there is no 'speed'; there are environments"), (["rollouts"], "unrecognized")):
        monkeypatch.setattr(sys, "argv", ["bench", *arguments])
        with pytest.raises(SystemExit, match="2"):
            main()
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(("platform", "counted"), [("linux", 300 * 2**10), ("darwin", 300 * 2**20)])
def test_memory_is_counted_in_the_system_s_unit(monkeypatch: pytest.MonkeyPatch, platform: str, counted: int) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(load.resource, "getrusage", lambda _: SimpleNamespace(ru_maxrss=counted))
    assert load.peak_mb() == 300
