"""``make_engine``: the four engines, lazy imports, and one-sentence errors for engines that cannot be created."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from selfimprove.core.errors import UserError
from selfimprove.core.records import Message
from selfimprove.core.seeds import SeedKey
from selfimprove.engines.base import Engine, Request
from selfimprove.engines.config import EngineConfig
from selfimprove.engines.factory import make_engine


def make(values: dict[str, object], policy: Path, *, expert: bool = True) -> Engine:
    cfg = TypeAdapter(EngineConfig).validate_python(values)
    answer = (lambda request, index: f"answer {index}") if expert else None
    return make_engine(cfg, policy_dir=policy, threads=1, expert=answer)


def test_scripted_answers_with_the_given_expert(tmp_path: Path) -> None:
    engine = make({"engine": "scripted"}, tmp_path)
    request = Request([Message(role="user", content="q")], SeedKey(0, "t"), n=2)
    assert [c.text for c in asyncio.run(engine.generate(request))] == ["answer 0", "answer 1"]


def test_scripted_without_an_expert_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no expert"):
        make({"engine": "scripted"}, tmp_path, expert=False)


def test_openai_without_its_key_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TEACHER_KEY", raising=False)
    values = {"engine": "openai", "base_url": "http://127.0.0.1:9/v1", "model": "m", "api_key_env": "TEACHER_KEY"}
    with pytest.raises(UserError, match="TEACHER_KEY is not set"):
        make(values, tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_a_missing_model_folder_is_named(engine: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere"):
        make({"engine": engine}, tmp_path / "nowhere")
    with pytest.raises(UserError, match="elsewhere"):
        make({"engine": engine, "model": str(tmp_path / "elsewhere")}, tmp_path)


@pytest.mark.parametrize("replicas", [0, -1, "2", True, "all"])
def test_vllm_replicas_are_a_count_or_auto(replicas: object, tmp_path: Path) -> None:
    for good in ("auto", 1, 8):
        TypeAdapter(EngineConfig).validate_python({"engine": "vllm", "replicas": good})
    with pytest.raises(ValueError, match="whole number from 1 to 8192, or auto"):
        make({"engine": "vllm", "replicas": replicas}, tmp_path)


def test_vllm_that_is_not_installed_is_reported_with_how_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)  # as if it were not installed
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match="make env-vllm"):
        make({"engine": "vllm"}, tmp_path)


def test_transformers_loads_the_model_in_the_policy_folder(tmp_path: Path) -> None:
    from selfimprove.engines.cpu.engine import TransformersEngine
    from tests.support.tiny import make_tiny_model

    engine = make({"engine": "transformers", "slots": 2, "context": 64}, make_tiny_model(tmp_path / "policy"))
    assert isinstance(engine, TransformersEngine)
    request = Request([Message(role="user", content="2 + 2?")], SeedKey(0, "t"), max_tokens=4)

    async def once() -> int:
        completions = await engine.generate(request)
        await engine.close()
        return len(completions)

    assert asyncio.run(once()) == 1


def test_importing_the_light_engines_imports_no_torch_transformers_or_vllm() -> None:
    code = (
        "import sys, selfimprove.engines.factory, selfimprove.engines.openai, selfimprove.engines.scripted, "
        "selfimprove.engines.vllm.engine\n"
        "print([m for m in ('torch', 'transformers', 'vllm') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
