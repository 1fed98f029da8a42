"""The ``tools`` section of a method: which tools a policy may call, by name, and the implementation of each.

::

    tools:
      use: {search: local}                      # local | replay | serpapi
      use: {search: local, add: "mytools:add"}  # and a user-defined function: (str) -> str or None
"""

from pydantic import Field, field_validator

from selfimprove.core.params import Section
from selfimprove.envs.qa.tools.bm25 import Setup
from selfimprove.envs.qa.tools.search import CUT
from selfimprove.envs.qa.tools.serpapi import SerpApiParams

BUILT_IN = ("local", "replay", "serpapi")


class ToolsParams(Section):
    """Tools and their limits. A policy's text is passed to a tool as one string, and never to a shell."""

    use: dict[str, str] = Field(
        default={"search": "local"}, min_length=1, description="name -> local, replay, serpapi, or module:function"
    )
    setup: Setup = Field(
        default="title_text", description="local: what is indexed; plain is the text alone, Okapi BM25"
    )
    k1: float = Field(default=1.5, ge=0)
    b: float = Field(default=0.75, ge=0, le=1)
    cut: int = Field(default=CUT, ge=20, description="local: characters of an answer, near enough")
    snippets: str | None = Field(default=None, description="replay: the file of queries and snippets")
    cache: str | None = Field(default=None, description="serpapi: file of the answers so far; null: none is kept")
    serpapi: SerpApiParams = SerpApiParams()
    concurrency: int = Field(default=16, ge=1, le=1000, description="calls at once, of all tools together")
    timeout: float = Field(default=30.0, gt=0, description="seconds a call may take; then it counts as failed")
    longest: int = Field(default=2000, ge=20, description="characters of any answer; the rest is cut off")

    @field_validator("use")
    @classmethod
    def _known(cls, use: dict[str, str]) -> dict[str, str]:
        folded = [name.strip().lower() for name in use]
        for name, behind in use.items():
            if not name.strip() or set(name) & set("[]\n") or name.strip().lower() == "finish":
                raise ValueError(f"use: {name!r} can't be a tool's name; choose a word other than finish")
            module, colon, function = behind.partition(":")
            if behind not in BUILT_IN and not (colon and module and function.isidentifier()):
                raise ValueError(
                    f"use.{name}: {behind!r} is neither {', '.join(BUILT_IN)} nor module:function; name one of these"
                )
        if len(set(folded)) < len(folded):
            raise ValueError("use: two names differ by case only, and tools are called without regard to case")
        return use
