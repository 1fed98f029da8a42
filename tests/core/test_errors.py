"""One-line forms of errors: what a user is shown of a message, and of what the system refused."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import pytest

from selfimprove.core.errors import LONGEST_LINE, first_line, for_terminal, refusal


@pytest.mark.parametrize(
    ("message", "line"), [("\n a: b\nc", "a: b"), ("", "ValueError"), (" \n", "ValueError"), ("x" * 400, "x" * 300)]
)
def test_an_exception_is_shown_by_its_first_line_of_300_characters_at_most_or_by_its_type(
    message: str, line: str
) -> None:
    assert first_line(ValueError(message)) == line


def test_the_middle_of_a_line_that_is_too_long_for_a_terminal_is_counted() -> None:
    begin, end = "a" * (LONGEST_LINE // 2), "b" * (LONGEST_LINE // 2)
    assert for_terminal(f"{begin}{end}\nshort") == f"{begin}{end}\nshort"
    assert for_terminal(f"{begin}-{end}\nshort") == f"{begin} … (1 characters) … {end}\nshort"


def test_a_file_that_a_copied_folder_could_not_write_is_named(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "from/file").touch()

    def full(source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(shutil.Error) as refused:
        shutil.copytree(tmp_path / "from", tmp_path / "to", copy_function=full)
    said = refusal(refused.value)
    assert said is not None
    assert said.startswith(f"{tmp_path / 'to/file'} can't be written (")
    assert said.endswith("No space left on device); free some space, or use another path.")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, "Full"), "a file can't be written (Full); free some space and run it again."),
        # These are not about a file that the user could correct.
        (ValueError("x"), None),
        (PermissionError(errno.EACCES, "No"), None),
        (FileNotFoundError(errno.ENOENT, "None", "x"), None),
        (FileNotFoundError(errno.ENOENT, "None"), None),
        (FileNotFoundError(errno.ENOENT, "None", "my temporary directory"), None),
        (OSError("the temporary directory"), None),
    ],
)
def test_only_a_file_that_the_system_refuses_is_reported_as_the_user_s_to_correct(
    error: Exception, said: str | None
) -> None:
    assert refusal(error) == said
