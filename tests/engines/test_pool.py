"""A stage's engines: only named ones are created, all but scripted ones are journaled, and all are closed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from selfimprove.core.errors import UserError
from selfimprove.core.journal import Journal
from selfimprove.core.records import Message
from selfimprove.core.seeds import SeedKey
from selfimprove.engines import pool
from selfimprove.engines.base import Request
from selfimprove.engines.config import ScriptedEngineConfig, TransformersEngineConfig
from selfimprove.engines.journal import JournaledEngine
from selfimprove.engines.pool import open_engines, usage
from selfimprove.engines.scripted import ScriptedEngine

CONFIGS: dict[str, Any] = {
    "student": TransformersEngineConfig(engine="transformers", slots=2, context=64, prefill_rows=1),
    "teacher": ScriptedEngineConfig(engine="scripted", error_rate=0.25),
    "unused": TransformersEngineConfig(engine="transformers", model="/nowhere"),
}
REQUEST = Request([Message(role="user", content="3 + 4?")], SeedKey(1, "task"), max_tokens=4)


def test_only_named_engines_are_created_each_once_and_the_answers_of_a_model_are_journaled(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    make_engine = pool.make_engine

    def noted(config: Any, **more: Any) -> Any:
        made.append(config)
        return make_engine(config, **more)

    monkeypatch.setattr(pool, "make_engine", noted)

    async def run() -> tuple[str, str, dict[str, float]]:
        with Journal(tmp_path / "j") as journal:
            async with open_engines(
                CONFIGS, {"teacher": tiny, "student": tiny}, threads=1, journal=journal,
                expert=lambda config: lambda request, index: f"rate {config.error_rate}",
            ) as engines:  # fmt: skip
                assert list(engines) == ["student", "teacher"]
                assert isinstance(engines["student"], JournaledEngine)
                assert isinstance(engines["teacher"], ScriptedEngine)  # not journaled: repeating costs nothing
                texts = [(await engines[name].generate(REQUEST))[0].text for name in engines]
                return texts[0], texts[1], usage(engines)

    first = asyncio.run(run())
    assert made == [CONFIGS["student"], CONFIGS["teacher"]]
    second = asyncio.run(run())
    assert first[:2] == second[:2]
    assert first[1] == "rate 0.25"
    assert (first[2]["student_generated_tokens"] > 0, second[2]["student_generated_tokens"]) == (True, 0)
    assert 0 < first[2]["student_occupancy"] <= 1


def test_engines_are_closed_with_and_without_an_error(tmp_path: Path) -> None:
    closed = []

    class Closing(ScriptedEngine):
        async def close(self) -> None:
            closed.append(self)

    async def run(error: BaseException | None) -> None:
        with Journal(tmp_path / "j") as journal:
            async with open_engines(
                CONFIGS, {"teacher": tmp_path}, threads=1, journal=journal, expert=lambda c: lambda r, i: ""
            ) as engines:
                engines["teacher"] = Closing(lambda request, index: "")
                if error:
                    raise error

    asyncio.run(run(None))
    with pytest.raises(RuntimeError):
        asyncio.run(run(RuntimeError()))
    assert len(closed) == 2


def test_a_scripted_engine_without_an_expert_and_a_missing_model_are_refused(tmp_path: Path) -> None:
    async def run(name: str) -> None:
        with Journal(tmp_path / "j") as journal:
            async with open_engines(CONFIGS, {name: tmp_path}, threads=1, journal=journal):
                pass

    with pytest.raises(UserError, match="no expert"):
        asyncio.run(run("teacher"))
    with pytest.raises(UserError, match="/nowhere contains no model"):
        asyncio.run(run("unused"))
