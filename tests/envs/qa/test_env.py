"""The environment of lookup questions: searches and lookups that find nothing."""

from __future__ import annotations

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
