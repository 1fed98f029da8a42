"""What requests get if vLLM breaks, or ends an answer with an error; vLLM itself is a stand-in."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from selfimprove.core.errors import UserError
from selfimprove.core.records import Message
from selfimprove.core.seeds import SeedKey
from selfimprove.engines.base import EngineError, EngineStats, Request
from selfimprove.engines.config import VllmEngineConfig
from selfimprove.engines.vllm import thread
from selfimprove.engines.vllm.engine import VllmEngine


class Failing:
    """Refuses odd prompts, and breaks at the prompt [0]."""

    def has_unfinished_requests(self) -> bool:
        return False

    def add_request(self, name: str, prompt: dict[str, list[int]], params: Any) -> None:
        if prompt["prompt_token_ids"] == [0]:
            raise RuntimeError("no grammar")
        raise ValueError("the prompt is odd")


class Thread(thread.VllmThread):
    def _build(self) -> Any:
        return Failing()


def test_a_request_that_breaks_vllm_while_it_is_added_is_answered_like_all_later_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(thread, "refusals", lambda: (ValueError,))
    monkeypatch.setattr(thread, "_shut_down", thread._CLOSED.clear)

    async def asked() -> None:
        engine = Thread(VllmEngineConfig(engine="vllm", context=64), None, EngineStats())  # type: ignore[arg-type]
        with pytest.raises(EngineError, match="vLLM refuses the request"):
            await asyncio.wait_for(engine.ask([([1], None)]), 60)  # type: ignore[list-item]
        for ids in ([0], [2]):
            with pytest.raises(UserError, match=r"engine vllm failed .*no grammar"):
                await asyncio.wait_for(engine.ask([(ids, None)]), 60)  # type: ignore[list-item]
        await engine.close()

    asyncio.run(asked())


@pytest.mark.parametrize("reason", ["error", "abort", None])
def test_an_answer_that_vllm_ends_with_an_error_is_no_answer(
    reason: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answered(_: Any) -> list[Any]:
        return [SimpleNamespace(outputs=[SimpleNamespace(finish_reason=reason)])]

    engine = VllmEngine.__new__(VllmEngine)
    monkeypatch.setattr(engine, "_ask", answered, raising=False)
    monkeypatch.setattr(engine, "_params", lambda *_: None)
    request = Request(
        messages=[Message(role="user", content="Hi")], seed=SeedKey(run=1, task="t", turn=0), max_tokens=4
    )
    with pytest.raises(EngineError, match=f"vLLM ended the answer with {reason!r}"):
        asyncio.run(engine._write(request, [1]))
