"""Fixtures for tests of SPIN."""

from pathlib import Path

import pytest

from selfimprove.core.chat import ChatFormat


@pytest.fixture(scope="session")
def react(tokenizer: Path) -> ChatFormat:
    """The tiny tokenizer's format, with the template ``react``."""
    return ChatFormat.load(tokenizer, "react")
