"""Calls tools for a policy, by case-insensitive name, with limits on concurrency and time (docs/spin.md, S19).

Whatever a tool does, the episode continues. If it raises, hangs or returns no text, the call returns None, for which
the method has a neutral text; long texts are cut. Counters record this. Exception texts never enter a trajectory.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from selfimprove.core.errors import UserError
from selfimprove.core.records import plain_text
from selfimprove.envs.own_classes import imported
from selfimprove.envs.qa.tools.params import ToolsParams
from selfimprove.envs.qa.tools.search import Tool

_READ_AT_MOST = 1 << 16  # the number of characters of a result that are processed before it is cut

Outcome = tuple[Any, Exception | None]
"""A tool's result, and the exception that it raised instead.

A future with an exception would refuse ``StopIteration``, and a tool's own ``TimeoutError`` would count as a late call.
"""

MOST_STUCK = 64
"""The maximum number of late calls whose threads still run. At this limit, further calls count as late immediately."""


class Tools:
    """The tools of a run.

    ``stats`` counts: calls, empty (nothing found), failed (raised), late (timed out), unknown (no such tool), odd (not
    text), cut (too long). ``faults`` counts exceptions by class name.
    """

    def __init__(self, tools: Mapping[str, Tool], *, concurrency: int, timeout: float, longest: int) -> None:
        self._tools = {name.strip().lower(): tool for name, tool in tools.items()}
        self._slots = asyncio.Semaphore(concurrency)
        self._timeout = timeout
        self._longest = longest
        self._stuck: set[threading.Thread] = set()
        self.stats: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()

    def has(self, name: str) -> bool:
        """Whether there is such a tool."""
        return name.strip().lower() in self._tools

    async def call(self, name: str, argument: str) -> str | None:
        """The tool's result on one line, cut; None if it found nothing, failed, was late, or there is no such tool.

        Raises:
            UserError: only for problems that affect every call, such as a refused key.
        """
        tool = self._tools.get(name.strip().lower())
        self.stats["calls"] += 1
        if tool is None:
            self.stats["unknown"] += 1
            return None
        try:
            if getattr(tool, "in_place", False):
                answer, error = _outcome(tool, argument)
            else:
                async with self._slots:
                    answer, error = await self._in_time(tool, argument)
        except TimeoutError:
            self.stats["late"] += 1
            return None
        if isinstance(error, UserError):
            raise error
        if error is not None:
            self.stats["failed"] += 1
            self.faults[type(error).__name__] += 1
            return None
        return self._clean(answer)

    async def _in_time(self, tool: Tool, argument: str) -> Outcome:
        """The tool's outcome. Threads cannot be killed, so at most ``MOST_STUCK`` are abandoned at any time.

        Raises:
            TimeoutError: the call took too long, or too many earlier calls have not ended yet.
        """
        self._stuck = {thread for thread in self._stuck if thread.is_alive()}
        if len(self._stuck) >= MOST_STUCK:
            raise TimeoutError
        thread, answer = _in_thread(tool, argument)
        try:
            return await asyncio.wait_for(answer, self._timeout)
        except TimeoutError:
            self._stuck.add(thread)
            raise

    def close(self) -> None:
        """Close the tools that have a ``close`` method."""
        for tool in self._tools.values():
            close = getattr(tool, "close", None)
            if callable(close):
                close()

    def _clean(self, answer: Any) -> str | None:
        if answer is not None and not isinstance(answer, str):
            self.stats["odd"] += 1
            return None
        text = " ".join((answer or "")[: max(_READ_AT_MOST, self._longest)].split())
        text = plain_text(text)
        if not text:
            self.stats["empty"] += 1
            return None
        if len(text) > self._longest:
            self.stats["cut"] += 1
            text = text[: self._longest].rstrip()
        return text


def _outcome(tool: Tool, argument: str) -> Outcome:
    try:
        return tool(argument), None
    except Exception as error:
        return None, error


def _in_thread(tool: Tool, argument: str) -> tuple[threading.Thread, asyncio.Future[Outcome]]:
    """Start a daemon thread for a call; returns the thread and a future of the tool's outcome.

    A thread pool is joined when the process ends, so that one hanging call would keep the finished run from exiting.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Outcome] = loop.create_future()

    def settle(outcome: Outcome) -> None:
        if not answer.done():
            answer.set_result(outcome)

    def work() -> None:
        try:
            outcome = _outcome(tool, argument)
        except BaseException as error:  # sys.exit() in a tool ends only the call
            outcome = None, RuntimeError(type(error).__name__)
        try:
            loop.call_soon_threadsafe(settle, outcome)
        except RuntimeError:
            return  # the loop is closed: nothing waits for this result

    thread = threading.Thread(target=work, daemon=True, name="tool")
    thread.start()
    return thread, answer


def make_tools(params: ToolsParams, corpus: Path | None) -> Tools:
    """Create the tools in ``params.use``. ``corpus``: the paragraphs that ``local`` searches.

    Raises:
        UserError: a corpus, file, key, module or function is missing (names the param).
    """
    tools = {name: _make(name, behind, params, corpus) for name, behind in params.use.items()}
    return Tools(tools, concurrency=params.concurrency, timeout=params.timeout, longest=params.longest)


def _make(name: str, behind: str, params: ToolsParams, corpus: Path | None) -> Tool:
    if behind == "local":
        from selfimprove.envs.qa.tools.bm25 import LocalSearch, read_corpus

        if corpus is None:
            raise UserError(
                f"tools.use.{name}: local needs a corpus, which this run does not have; choose another tool."
            )
        return LocalSearch(read_corpus(corpus), setup=params.setup, k1=params.k1, b=params.b, cut=params.cut)
    if behind == "replay":
        from selfimprove.envs.qa.tools.replay import ReplaySearch, read_snippets

        if params.snippets is None:
            raise UserError(f"tools.use.{name}: replay needs tools.snippets, a file of queries and snippets; name one.")
        return ReplaySearch(read_snippets(Path(params.snippets)), k1=params.k1, b=params.b)
    if behind == "serpapi":
        from selfimprove.envs.qa.tools.cache import CachedSearch
        from selfimprove.envs.qa.tools.serpapi import SerpApiSearch

        search = SerpApiSearch(params.serpapi)
        return search if params.cache is None else CachedSearch(search, Path(params.cache))
    return own_tool(behind, f"tools.use.{name}")


def own_tool(spec: str, place: str) -> Tool:
    """The function ``module:function``.

    Raises:
        UserError: no such module or function, or it can't be called.
    """
    try:
        tool = imported(spec, place)
    except ValueError as error:
        raise UserError(f"{error}.") from None
    if not callable(tool):
        module, _, function = spec.partition(":")
        raise UserError(f"{place}: {module} has no function {function!r}; fix the name.")
    return tool  # type: ignore[no-any-return]
