"""The environment of lookup questions: searches and lookups that find nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from selfimprove.envs.registry import text_env


@pytest.mark.parametrize("action", ["lookup[]", "lookup[ ]", "lookup[a]", "search[]", "search[zzyx]"])
def test_an_action_that_finds_nothing_is_invalid(action: str) -> None:
    env = text_env(name="encyclopedia", questions=10).make()
    env.reset(0)
    step = env.step(action)
    assert (step.observation, step.info["valid"]) == ("Nothing was found.", False)


def test_a_search_for_a_title_finds_that_paragraph(tmp_path: Path) -> None:
    """So the expert reads the paragraph with the answer, even if another one ranks above it."""
    title, other = "South Park (season 10)", "Funnybot"
    texts = {title: "It began in March 2006.", other: "Funnybot, of South Park after season 10, is in South Park."}
    asked = {"question": "When did it begin?", "answer": "March 2006", "supporting_facts": [[title, 0]]}
    row = asked | {"context": [[name, [text]] for name, text in texts.items()]}
    file = tmp_path / "questions.jsonl"
    file.write_text(json.dumps(row) + "\n", encoding="utf-8")
    env = text_env(name="hotpotqa", file=str(file)).make()
    env.reset(0)
    assert env.step("search[South Park after season]").observation == texts[other]
    assert env.step(env.expert()[0].action).observation == texts[title]


def test_a_search_keeps_jax_off_the_gpu_if_it_is_installed(tmp_path: Path) -> None:
    """bm25s imports it; the stand-in reports the platforms that it may use."""
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax/__init__.py").write_text("import os\nprint('platforms', os.environ.get('JAX_PLATFORMS'))\n")
    (tmp_path / "jax/lax.py").write_text("def top_k(values, count): pass\n")
    search = "from selfimprove.envs.registry import text_env; text_env(name='encyclopedia', questions=10).make()"
    environ = {name: value for name, value in os.environ.items() if name != "JAX_PLATFORMS"}
    environ["PYTHONPATH"] = os.pathsep.join([str(tmp_path), str(Path(__file__).resolve().parents[3])])
    ran = subprocess.run([sys.executable, "-c", search], env=environ, capture_output=True, text=True, check=True)
    assert ran.stdout == "platforms cpu\n"
