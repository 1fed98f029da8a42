"""Caches greedy completions: equal prompts get equal answers.

Greedy completions draw no noise, so the seed key is not part of the cache key. A frozen model that gets the same states
repeatedly (a reflection model in reinforcement learning) generates only once for each.
"""

import asyncio
from collections import OrderedDict
from dataclasses import replace
from typing import Any

from selfimprove.core.seeds import SeedKey
from selfimprove.engines.base import Around, Completion, Engine, Request

MOST = 1 << 15
"""Maximum number of cached answers; the least recently used are dropped."""

NOBODY = SeedKey(0, "")


class RememberingEngine(Around):
    """Wraps an engine with constant weights. Sampled requests pass through uncached."""

    def __init__(self, inner: Engine, most: int = MOST) -> None:
        super().__init__(inner)
        self._most = most
        self._known: OrderedDict[Any, list[Completion]] = OrderedDict()
        self._asked: dict[Any, asyncio.Task[list[Completion]]] = {}

    async def generate(self, request: Request) -> list[Completion]:
        """Like the inner engine. Failures are not cached."""
        if request.temperature != 0 or request.n != 1:
            return await self._inner.generate(request)
        key = _key(request)
        if key in self._known:
            self._known.move_to_end(key)
            return self._known[key]
        if key not in self._asked:
            self._asked[key] = asyncio.create_task(self._ask(key, request))
        return await asyncio.shield(self._asked[key])  # others may still wait for it if this caller is cancelled

    async def _ask(self, key: Any, request: Request) -> list[Completion]:
        try:
            answer = await self._inner.generate(request)
        finally:
            del self._asked[key]
        self._known[key] = answer
        while len(self._known) > self._most:
            self._known.popitem(last=False)
        return answer


def _key(request: Request) -> Any:
    plain = replace(request, messages=(), seed=NOBODY, stop=tuple(request.stop), allowed=None)
    ids = (None if m.token_ids is None else tuple(m.token_ids) for m in request.messages)
    messages = tuple((m.role, m.content, m.finish, own) for m, own in zip(request.messages, ids, strict=True))
    return plain, messages, request.allowed and tuple(request.allowed)
