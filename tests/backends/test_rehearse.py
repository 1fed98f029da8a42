"""GPU profiles rehearsed with the user's command, ``make rehearse QUICK=1``: one for each launcher and engine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.support.repo_copy import ROOT, copy_repo, run

pytestmark = [pytest.mark.backend, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def repo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository with links to this repository's environments."""
    folder = copy_repo(tmp_path_factory.mktemp("repo"), "default")
    shutil.copyfile(ROOT / "Makefile", folder / "Makefile")
    shutil.copytree(ROOT / "docs", folder / "docs")
    for name in (".venv", ".venvs"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def rehearse(repo: Path, profile: str) -> tuple[Path, str]:
    """Rehearse a profile without changing the user's files; return the rehearsal's folder and its output."""
    params = (repo / "params.yaml").read_text()
    said = run(repo, "make", "rehearse", f"PROFILE={profile}", "QUICK=1", DATA_MIRROR="/nowhere").stdout
    assert (repo / "params.yaml").read_text() == params
    assert run(repo, "git", "status", "--porcelain", "dvc.lock").stdout == ""
    assert "the whole graph of" in said
    return repo / f".rehearsal/{profile}.quick", said


def rows(folder: Path, method: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"results/summary/{method}.json").read_text())["rows"]
    return found


def test_rise_with_a_teacher_over_http_vllm_and_zero_3(repo: Path) -> None:
    folder, said = rehearse(repo, "rise-llama2-7b")
    assert rows(folder, "rise").keys() == {"base", "iter1"}
    played = json.loads((folder / "results/rise/iter1/generate.json").read_text())
    assert played["solved"]["mean"] == 1.0  # the teacher solves them in the second turn
    assert played["blocked"] == 0
    assert "training by trainer, deepspeed ZeRO-3, all weights" in said
    assert "engines student: vllm, teacher: openai" in said
    again = run(repo, "make", "rehearse", "PROFILE=rise-llama2-7b", "QUICK=1").stdout
    assert "rise-finetune" not in again.partition("the whole graph of")[0]  # no stage runs twice


def test_agent_r_with_the_actor_as_judge_in_vllm_and_zero_2(repo: Path) -> None:
    folder, said = rehearse(repo, "agent-r-llama3.1-8b")
    assert json.loads((folder / "results/agent_r/iter1/convert.json").read_text())["judged"] > 0
    assert "training by trainer, deepspeed ZeRO-2, all weights" in said


def test_spin_with_adapters_on_8_bit_weights_in_one_process(repo: Path) -> None:
    folder, said = rehearse(repo, "spin-llama2-7b")
    assert json.loads((folder / "results/spin/iter0/train.json").read_text())["steps"] > 0
    assert "training by trainer, single, LoRA on 8bit weights" in said


def test_reflect_rl_with_a_teacher_that_writes_questions_reflections_and_actions(repo: Path) -> None:
    folder, _ = rehearse(repo, "reflect-rl-gpt2-xl")
    made = [json.loads(line) for line in (folder / "data/reflect_rl/trajectories.jsonl").read_text().splitlines()]
    assert {one["status"] for one in made if one["info"] == "positive"} == {"solved"}
    assert {"policy", "reflect_rl"} <= rows(folder, "reflect_rl").keys()
