"""vLLM's thread answers every request, whatever happens to the engine; the engine is a stand-in."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from selfimprove.core.errors import UserError
from selfimprove.engines.base import EngineError, EngineStats
from selfimprove.engines.config import VllmEngineConfig
from selfimprove.engines.vllm import thread


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
