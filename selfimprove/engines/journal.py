"""Keeps every finished completion of an engine in a journal, so that a killed stage repeats none of them.

The unit of work is one call: a request, or part of one at an endpoint that limits the samples per call. After a kill, a
method's code runs again from its start and makes the same requests; the journal answers the finished ones, and only the
rest reach the engine (and, with a paid endpoint, cost money). Failures are not stored: a resumed run tries them
again.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, replace
from hashlib import blake2b
from typing import Any

from selfimprove.core.journal import Journal
from selfimprove.engines.base import AnsweredLate, AnswersInParts, Around, Choice, Completion, Engine, Request


class JournaledEngine(Around):
    """An engine whose completions survive a kill. ``name`` distinguishes engines that share a journal."""

    def __init__(self, inner: Engine, journal: Journal, name: str) -> None:
        super().__init__(inner)
        self._journal, self._name = journal, name

    async def generate(self, request: Request) -> list[Completion]:
        """Like the inner engine, but generates the same samples at most once. Raises: as the inner engine."""
        key = f"{self._name} {request.seed} {_digest(request)}"
        done: list[Completion] = []
        while len(done) < request.n and (part := f"{key} {len(done)}") in self._journal:
            done += [_completion(row) for row in self._journal[part]]
        if done and isinstance(self._inner, AnswersInParts):
            self._inner.answered_before = True
        if len(done) == request.n:
            return done
        # A sample's noise depends on its own index, so the remaining samples can be requested alone.
        first = request.seed.sample + len(done)
        rest = replace(request, n=request.n - len(done), seed=request.seed.at(first))
        try:
            async for completions in self._parts(rest):
                self._keep(key, len(done), completions)
                done += completions
        except AnsweredLate as late:
            self._keep(key, len(done), late.completions)
            raise
        return done

    async def _parts(self, request: Request) -> AsyncIterator[list[Completion]]:
        if isinstance(self._inner, AnswersInParts):
            async for completions in self._inner.parts(request):
                yield completions
        else:
            yield await self._inner.generate(request)

    def _keep(self, key: str, first: int, completions: Sequence[Completion]) -> None:
        """Store the completions of one call, for the samples from ``first`` on."""
        self._journal.add(f"{key} {first}", [asdict(completion) for completion in completions])


def _completion(row: dict[str, Any]) -> Completion:
    choice = row.get("choice")
    return Completion(**{**row, "choice": Choice(**choice) if choice else None})


def _digest(request: Request) -> str:
    text = repr(
        (
            [(m.role, m.content, m.token_ids, m.finish) for m in request.messages],
            request.n, request.temperature, request.top_p, request.max_tokens,
            tuple(request.stop), request.allowed and tuple(request.allowed),
            request.top_k, request.choice, request.cut_left, request.keep_stop,
        )
    )  # fmt: skip
    return blake2b(text.encode(), digest_size=12).hexdigest()
