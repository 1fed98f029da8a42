"""Assertions about error messages for users: one sentence, as ``UserError`` requires."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from selfimprove.core.errors import UserError


def check_sentence(said: str) -> None:
    """Assert that a message has one line, which ends like a sentence, and contains no traceback."""
    assert said.splitlines() == [said], said
    assert said.endswith((".", "?")), said
    assert "Traceback" not in said, said


@contextmanager
def refused_with(words: str) -> Iterator[None]:
    """Expect a ``UserError`` whose message is one sentence that matches ``words``, a regular expression."""
    with pytest.raises(UserError, match=words) as error:
        yield
    check_sentence(str(error.value))
