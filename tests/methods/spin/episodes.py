"""Shared by the tests of SPIN: a tiny library to search, a scripted policy, a question, an episode."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence

from selfimprove.engines.base import Request
from selfimprove.engines.scripted import ScriptedEngine
from selfimprove.envs.qa.base import Question
from selfimprove.envs.qa.experts import Expert, Round
from selfimprove.envs.qa.tools.dispatch import Tools
from selfimprove.methods.spin.params import PlayParams
from selfimprove.methods.spin.play import SpinEpisode, play
from selfimprove.methods.spin.prompts import Format

BOOK = {
    "The Silver Gate": "The Silver Gate is a novel by Mara Venn.",
    "Mara Venn": "Mara Venn was a painter from Tolma.",
}
QUESTION = Question(
    id="q1", task="hotpotqa", question="In which town was the author of The Silver Gate born?", gold="Tolma"
)
REPLIES = (
    " I need the author.\nAction: search[The Silver Gate]",
    " Mara Venn wrote it.\nAction: search[Mara Venn]",
    " She was born in Tolma.\nAction: finish[Tolma]",
)
EXPERT = Expert(
    id="expert-q1",
    question=QUESTION,
    rounds=[
        Round(thought="I need the author.", action="search[The Silver Gate]", observation=BOOK["The Silver Gate"]),
        Round(thought="Mara Venn wrote it.", action="search[Mara Venn]", observation=BOOK["Mara Venn"]),
        Round(thought="She was born in Tolma.", action="finish[Tolma]"),
    ],
    source="scripted",
)
"""The same trajectory as ``REPLIES``."""


def tools(search: Callable[[str], str | None] = BOOK.get, *, timeout: float = 5.0) -> Tools:
    """One tool, ``search``."""
    return Tools({"search": search}, concurrency=4, timeout=timeout, longest=2000)


def policy(answer: Sequence[str] | Callable[[Request, int], str]) -> ScriptedEngine:
    """An engine that replies with ``answer`` round by round, or with the result of a function of (request, attempt)."""
    if callable(answer):
        return ScriptedEngine(answer)
    replies = list(answer)
    return ScriptedEngine(lambda request, attempt: replies[request.seed.turn])


def played(
    answer: Sequence[str] | Callable[[Request, int], str] = REPLIES,
    *,
    question: Question = QUESTION,
    index: int = 0,
    search: Callable[[str], str | None] = BOOK.get,
    form: Format = "alpaca",
    few_shot: str = "",
    prefix: str = "",
    iteration: str = "",
    run: int = 0,
    **params: object,
) -> SpinEpisode:
    """One episode of a scripted policy."""
    cfg = PlayParams.model_validate(params)
    return asyncio.run(
        play(
            question, index, tools(search), policy(answer), cfg, 7, form=form, few_shot=few_shot, prefix=prefix,
            iteration=iteration, run=run,
        )
    )  # fmt: skip


def rounds_in(text: str) -> int:
    """The number of rounds in a flat text."""
    return len(re.findall(r"^Thought:", text, re.MULTILINE))
