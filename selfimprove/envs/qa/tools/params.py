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
        default={"search": "local"}, min_length=1, description="tool name -> local, replay, serpapi, or module:function"
    )
    setup: Setup = Field(
        default="title_text", description="local: the indexed text; plain: the text alone, ranked by Okapi BM25"
    )
    k1: float = Field(default=1.5, ge=0)
    b: float = Field(default=0.75, ge=0, le=1)
    cut: int = Field(default=CUT, ge=20, description="local: approximate length of a result in characters")
    snippets: str | None = Field(default=None, description="replay: file of queries and snippets")
    cache: str | None = Field(default=None, description="serpapi: file that caches the results; null: no cache")
    serpapi: SerpApiParams = SerpApiParams()
    concurrency: int = Field(
        default=16, ge=1, le=1000, description="maximum number of concurrent calls, over all tools"
    )
    timeout: float = Field(
        default=30.0, gt=0, description="timeout of a call in seconds; the call then counts as failed"
    )
    longest: int = Field(
        default=2000, ge=20, description="maximum length of any result in characters; longer results are truncated"
    )

    @field_validator("use")
    @classmethod
    def _known(cls, use: dict[str, str]) -> dict[str, str]:
        folded = [name.strip().lower() for name in use]
        for name, behind in use.items():
            if not name.strip() or set(name) & set("[]\n") or name.strip().lower() == "finish":
                raise ValueError(
                    f"use: {name!r} is not a valid tool name; choose a word other than finish, without brackets"
                )
            module, colon, function = behind.partition(":")
            if behind not in BUILT_IN and not (colon and module and function.isidentifier()):
                raise ValueError(
                    f"use.{name}: {behind!r} is not valid; choose one of {', '.join(BUILT_IN)}, or module:function"
                )
        if len(set(folded)) < len(folded):
            raise ValueError("use: two names differ only by case, which tool calls ignore; rename one")
        return use
