"""How a command line ends."""

from __future__ import annotations

import pytest
import typer

from selfimprove.core.cli import run
from selfimprove.core.errors import UserError


def ended(error: BaseException | None, *mistakes: type[Exception]) -> int:
    """The exit code of a command that raises ``error``."""
    app = typer.Typer()

    @app.command()
    def command() -> None:
        if error is not None:
            raise error

    with pytest.raises(SystemExit) as end:
        run(app, [], *mistakes)
    return int(end.value.code or 0)


def test_a_users_mistake_is_one_sentence_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(UserError("params.yaml: rise.lr is missing; add it.")) == 2
    assert capsys.readouterr().err == "params.yaml: rise.lr is missing; add it.\n"
    assert ended(KeyError("x"), KeyError) == 2  # what this command counts as one
    assert capsys.readouterr().err == "'x'\n"


def test_an_interrupted_command_ends_as_shells_say_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(KeyboardInterrupt()) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_a_fault_of_ours_keeps_its_traceback_and_success_is_0() -> None:
    app = typer.Typer()

    @app.command()
    def command() -> None:
        raise RuntimeError("ours")

    with pytest.raises(RuntimeError, match="ours"):
        run(app, [])
    assert ended(None) == 0
