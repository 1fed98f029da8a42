"""Agent-R works the same with a local model and with an OpenAI-compatible endpoint.

vLLM, the third, needs its own environment: tests/backends/test_vllm.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from selfimprove.core.records import Episode
from selfimprove.engines.base import Engine
from selfimprove.engines.config import OpenAiEngineConfig, TransformersEngineConfig
from selfimprove.engines.cpu.engine import TransformersEngine
from selfimprove.engines.openai import OpenAiEngine
from selfimprove.envs.interface import EmbeddedWorld
from selfimprove.methods.agent_r.params import EvaluateParams
from selfimprove.methods.agent_r.play import play
from selfimprove.methods.agent_r.search import search
from selfimprove.methods.agent_r.tree import Tree
from tests.engines.http_endpoint import Reply, Seen, answer, endpoint
from tests.methods.agent_r.corridor import Corridor
from tests.methods.agent_r.searching import NEAR, params, said
from tests.support.tiny import make_tiny_model


def acted(make: Callable[[], Engine]) -> tuple[Episode, Tree]:
    """An evaluated episode and a searched tree of one task, by the engine that ``make`` makes."""

    async def both() -> tuple[Episode, Tree]:
        engine, world = make(), EmbeddedWorld(Corridor())
        try:
            return await asyncio.gather(
                play(NEAR, world, engine, EvaluateParams(max_turns=4, max_tokens=12), 7, ()),
                search(NEAR, world, engine, params(n_gen=3, dives=2, max_tokens=12), 7),
            )
        finally:
            await engine.close()

    return asyncio.run(both())


def test_an_endpoint_acts_and_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    def actor(seen: Seen) -> Reply:
        has_key = any("You have the key" in message["content"] for message in seen.body["messages"])
        return answer(*[said("open door" if has_key else "take key")] * seen.body["n"])

    with endpoint(then=actor) as server:
        settings = {"engine": "openai", "base_url": server.url, "model": "m", "api_key_env": None}
        episode, tree = acted(lambda: OpenAiEngine(OpenAiEngineConfig.model_validate(settings)))
        assert (episode.rewards, episode.status) == ([0.5, 1], "solved")
        assert any(tree.nodes[leaf].reward == 1 for leaf in tree.leaves())
        assert any(seen.body["n"] == 3 for seen in server.seen)  # the samples of a node are one call


def test_a_local_model_acts_and_searches_the_same_each_time(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model")
    settings = {"engine": "transformers", "slots": 8, "context": 512, "prefill_rows": 2, "prefill_block": 16}

    def local() -> TransformersEngine:
        return TransformersEngine(TransformersEngineConfig.model_validate(settings), folder, threads=1)

    episode, tree = acted(local)
    assert [turn.attempt.text for turn in episode.turns]
    assert len(tree.nodes) > 1
    assert [*acted(local)] == [episode, tree]
