"""An engine that is a function: an environment's expert as a teacher, or a script in a test.

The function gets the request and the sample's index and returns the answer's text. It must take all randomness
from ``request.seed.at(index)``, so that the same request has the same answers at any time and in any order.
"""

from collections.abc import Callable, Sequence

from selfimprove.core.errors import UserError
from selfimprove.core.records import Message
from selfimprove.engines.base import Completion, EngineStats, Request, first_stop

Answer = Callable[[Request, int], str]
"""(request, sample index: ``request.seed.sample`` + i for the i-th completion) -> the answer's text."""


class ScriptedEngine:
    """Answers with ``answer(request, index)``. Counts requests and completions, but no tokens.

    Stop strings and ``allowed`` apply as for every engine; ``max_tokens``, ``temperature`` and ``top_p`` are ignored,
    because an expert does not sample.
    """

    def __init__(self, answer: Answer) -> None:
        self.stats = EngineStats()
        self._answer = answer

    async def generate(self, request: Request) -> list[Completion]:
        """Return ``request.n`` answers, in sample order.

        Raises:
            UserError: the answer is not in ``request.allowed``.
        """
        self.stats.requests += 1
        first = request.seed.sample
        texts = [self._limit(self._answer(request, first + i), request) for i in range(request.n)]
        self.stats.completions += len(texts)
        return [Completion(text, "stop") for text in texts]

    def fits(self, messages: Sequence[Message], max_tokens: int) -> bool:
        """True: an expert has no context limit."""
        return True

    async def close(self) -> None:
        """No-op: it holds no resources."""

    @staticmethod
    def _limit(text: str, request: Request) -> str:
        found = first_stop(text, request.stop)
        if found is not None:
            text = text[: found[1] if request.keep_stop else found[0]]
        if request.allowed is not None and text not in request.allowed:
            raise UserError(
                f"engine scripted: the expert answered {text!r}, which is not allowed here; choose another engine."
            )
        return text
