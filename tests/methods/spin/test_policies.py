"""A question played by two kinds of policy: a local model with its adapter, and an endpoint (docs/spin.md, S17).

The third kind, vLLM, needs its own environment: tests/backends/test_vllm.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from selfimprove.engines.base import Engine
from selfimprove.engines.config import OpenAiEngineConfig, TransformersEngineConfig
from selfimprove.engines.cpu.engine import TransformersEngine
from selfimprove.engines.openai import OpenAiEngine
from selfimprove.methods.spin.params import PlayParams
from selfimprove.methods.spin.play import SpinEpisode, play
from selfimprove.methods.spin.prompts import Format
from selfimprove.models.merge import merge_adapter
from selfimprove.training.config import FinetuneParams
from selfimprove.training.loading import load_model
from tests.engines.http_endpoint import Reply, Seen, answer, endpoint
from tests.methods.spin.episodes import QUESTION, REPLIES, tools
from tests.support.tiny import make_tiny_model


def questions(make: Callable[[], Engine], count: int, form: Format, **params: object) -> list[SpinEpisode]:
    """Play ``count`` runs of the question concurrently on an engine created by ``make``."""
    cfg = PlayParams.model_validate({"retries": 1, **params})

    async def everything() -> list[SpinEpisode]:
        engine = make()
        try:
            return await asyncio.gather(
                *(play(QUESTION, 0, tools(), engine, cfg, 7, form=form, run=run) for run in range(count))
            )
        finally:
            await engine.close()

    return asyncio.run(everything())


def local(folder: Path) -> TransformersEngine:
    settings = {"engine": "transformers", "slots": 4, "context": 512, "prefill_rows": 2, "prefill_block": 16}
    return TransformersEngine(TransformersEngineConfig.model_validate(settings), folder, threads=1)


@pytest.mark.slow
def test_runs_of_a_model_with_a_merged_adapter_differ_and_are_reproducible(tmp_path: Path) -> None:
    base = make_tiny_model(tmp_path / "base")
    cfg = FinetuneParams.model_validate({"lora": {"rank": 4, "alpha": 32, "targets": ["q_proj", "v_proj"]}})
    model, _ = load_model(base, cfg, 3)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_" in name:
                weight.normal_(std=0.5, generator=torch.Generator().manual_seed(len(name)))
    model.save_pretrained(tmp_path / "adapter")
    merged = tmp_path / "merged"
    merge_adapter(base, tmp_path / "adapter", "float32").save_pretrained(merged)
    for file in base.glob("tokenizer*"):
        (merged / file.name).write_bytes(file.read_bytes())

    def texts(folder: Path, **params: object) -> list[str]:
        play_params = {"max_tokens": 20, "max_turns": 2, **params}
        episodes = questions(lambda: local(folder), 6, "question", **play_params)
        return [episode.messages[1].content for episode in episodes]

    sampled = texts(merged)
    assert len(set(sampled)) == 6  # each run has its own seed
    assert texts(merged) == sampled
    assert texts(base) != sampled
    assert len(set(texts(merged, temperature=0.0))) == 1


def test_an_endpoint_plays_whole_episodes_within_its_concurrency_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")

    def policy(seen: Seen) -> Reply:
        rounds = sum(message["role"] == "assistant" for message in seen.body["messages"])
        return answer(f"Thought:{REPLIES[rounds]}")

    with endpoint(then=policy) as server:
        settings = {"engine": "openai", "base_url": server.url, "model": "m", "api_key_env": None, "concurrency": 3}
        cfg = OpenAiEngineConfig.model_validate(settings)
        episodes = questions(lambda: OpenAiEngine(cfg), 12, "chat", temperature=0.4)
        assert [(episode.answer, episode.reward) for episode in episodes] == [("Tolma", 1.0)] * 12
        assert len(server.seen) == 12 * len(REPLIES)
        assert server.most_at_once <= 3
        assert {seen.body["temperature"] for seen in server.seen} == {0.4}
        assert all(seen.body["stop"] for seen in server.seen)
        assert len({seen.body["seed"] for seen in server.seen}) == len(server.seen)
