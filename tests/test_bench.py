"""The command ``python -m bench``: its help and its parts (their measurements are tested beside what they measure)."""

import sys

import pytest

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
