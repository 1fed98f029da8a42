"""How a language model is asked for questions about files (``llm_tasks`` asks; the params hold this)."""

from __future__ import annotations

from pydantic import Field

from selfimprove.core.params import Section


class Asking(Section):
    """The form of a request. ``pairs``: of one file, at most."""

    pairs: int = Field(default=2, ge=1, description="questions about a file, at most")
    temperature: float = Field(default=0.7, ge=0)
    top_p: float = Field(default=0.9, gt=0, le=1)
    max_tokens: int = Field(default=600, ge=1)
