"""How commands end: messages and exit codes."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from selfimprove.core.cli import one_sentence, run
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


def test_a_users_mistake_gives_one_sentence_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(UserError("params.yaml: rise.lr is missing; add it.")) == 2
    assert capsys.readouterr().err == "params.yaml: rise.lr is missing; add it.\n"
    assert ended(KeyError("x"), KeyError) == 2  # declared as a user's mistake by this command
    assert capsys.readouterr().err == "'x'\n"


JOBS = typer.Typer()


@JOBS.command()
def jobs_command(grid: str, jobs: int = 1) -> None:
    pass


@pytest.mark.parametrize(
    ("variable", "words", "said"),
    [
        ("two", ["a=1", "--jobs", "two"], "JOBS=two: input should be a valid integer"),
        ("", ["a=1", "--jobs", ""], "JOBS=: input should be a valid integer"),
        ("3", ["a=1", "--jobs", "two"], "--jobs: input should be a valid integer"),  # passed in ARGS
        (None, ["a=1", "--jobs", "two"], "--jobs: input should be a valid integer"),
        (None, ["a=1", "--job", "2"], "No such option: --job (Possible options: --jobs); --help lists all options."),
        (None, [], "Missing argument 'grid'; --help lists all options."),
    ],
)
def test_an_invalid_argument_is_reported_by_the_option_or_make_variable_that_the_user_typed(
    variable: str | None,
    words: list[str],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("JOBS", raising=False)
    if variable is not None:
        monkeypatch.setenv("JOBS", variable)
    monkeypatch.setattr("sys.argv", ["sweep", *words])
    with pytest.raises(SystemExit) as end:
        run(JOBS)
    (line,) = capsys.readouterr().err.splitlines()
    assert end.value.code == 2
    assert line.startswith(said)


def test_control_characters_in_a_message_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(UserError("a\x1b[2J\u202e: no;\nfix é.")) == 2
    assert capsys.readouterr().err == "a\\x1b[2J\\u202e: no;\nfix é.\n"
    with pytest.raises(SystemExit), one_sentence():
        raise UserError("a\x1b[2J")
    assert capsys.readouterr().err == "a\\x1b[2J\n"


def test_a_message_that_quotes_a_huge_key_keeps_its_place_and_its_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(UserError(f"params.yaml: unknown key {'k' * 10**6!r}; delete it.")) == 2
    said = capsys.readouterr().err
    assert len(said) < 2100
    assert said.startswith("params.yaml: unknown key 'kkk")
    assert "k … (998039 characters) … k" in said
    assert said.endswith("k'; delete it.\n")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC, errno.EIO])
def test_a_file_operation_that_the_system_refuses_gives_one_sentence_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], number: int
) -> None:
    assert ended(OSError(number, os.strerror(number), "a\x1b.json")) == 2
    said = capsys.readouterr().err
    assert said.startswith("a\\x1b.json can't be ")
    assert os.strerror(number) in said
    with pytest.raises(SystemExit) as end, one_sentence():
        raise OSError(number, os.strerror(number), "a\x1b.json")
    assert (end.value.code, capsys.readouterr().err) == (2, said)


def test_other_errors_of_the_system_keep_their_traceback() -> None:
    app = typer.Typer()

    @app.command()
    def command() -> None:
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "gone")

    with pytest.raises(FileNotFoundError):
        run(app, [])
    with pytest.raises(FileNotFoundError), one_sentence():
        raise FileNotFoundError(errno.ENOENT, "No such file or directory", "gone")


def test_an_interrupted_command_exits_with_130_and_no_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(KeyboardInterrupt()) == 130
    assert "Traceback" not in capsys.readouterr().err


WITHOUT_TYPER = """
import sys
from selfimprove.core.cli import one_sentence
@one_sentence()
def main():
    exec(sys.argv[1])
main()
"""


@pytest.mark.parametrize(
    ("does", "code"),
    [
        ("for _ in range(100_000): print('a line')", 141),
        ("print('a line')", 141),
        ("print('a line'); sys.exit(2)", 141),
        ("import signal; signal.raise_signal(signal.SIGINT)", 130),
    ],
)
def test_a_command_that_is_interrupted_or_loses_its_reader_prints_no_traceback(does: str, code: int) -> None:
    """A closed pipe may be noticed while the command runs or only when it exits."""
    with subprocess.Popen(
        [sys.executable, "-c", WITHOUT_TYPER, does], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as process:  # fmt: skip
        assert process.stdout
        assert process.stderr
        process.stdout.close()
        said = process.stderr.read()
    assert (process.returncode, said) == (code, "")


def test_a_command_without_standard_output_ends_as_usual() -> None:
    command = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-c", WITHOUT_TYPER, "print('a line')"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_characters_that_the_output_encoding_lacks_become_question_marks() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TYPER, "print('.7\u00b1.1')"], env={"PYTHONIOENCODING": "ascii"}, check=True,
        capture_output=True,
    )  # fmt: skip
    assert done.stdout == b".7?.1\n"


def test_a_bug_keeps_its_traceback_and_success_exits_with_0() -> None:
    app = typer.Typer()

    @app.command()
    def command() -> None:
        raise RuntimeError("ours")

    with pytest.raises(RuntimeError, match="ours"):
        run(app, [])
    assert ended(None) == 0


CLOSED = """
import subprocess, sys
from selfimprove.core.cli import one_sentence
child = "import sys; print('printed', flush=True); sys.stderr.flush(); open('ended', 'w')"
with one_sentence(), open("kept", "w") as file:
    print("said", flush=True)
    subprocess.run([sys.executable, "-c", child], check=True)
    file.write("kept")
"""


def test_a_command_whose_standard_streams_are_closed_works_and_nothing_is_printed_into_its_files(
    tmp_path: Path,
) -> None:
    words = ["sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, CLOSED]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run(words, cwd=tmp_path, env=environment, check=True)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"kept": "kept", "ended": ""}
