"""``make claims`` runs the pipeline for each kind of kernels and each seed, in folders of their own."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import pytest

from selfimprove.apps.claims import runs
from selfimprove.apps.claims.published import (
    collected,
    kernels_here,
    kernels_of,
    kinds_here,
)
from selfimprove.apps.claims.runs import run_all
from selfimprove.apps.claims.verify import told
from selfimprove.apps.page.provenance import facts
from selfimprove.apps.page.run import Run
from selfimprove.core.errors import UserError
from tests.support.repo_copy import copy_tiny, environment


def test_kernels_that_this_machine_lacks_are_refused(tmp_path: Path) -> None:
    assert kernels_here() in kinds_here()
    with pytest.raises(UserError, match="this machine has no neon kernels; choose among default"):
        run_all(tmp_path, ["neon"], [17])


def test_kernels_of_an_arm_processor_have_its_name_and_are_never_run_as_those_of_x86(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch calls both ``default``."""
    root, asked = copy_tiny(tmp_path / "repo"), []
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    monkeypatch.setattr(platform, "machine", lambda: "arm64")

    def repro(folder: Path, _: list[str], environ: dict[str, str], jobs: int) -> int:
        asked.append((kernels_of(folder), environ.get("ATEN_CPU_CAPABILITY")))
        return 1

    monkeypatch.setattr(runs, "repro", repro)
    assert run_all(root, kinds_here(), [1]) == 1
    assert asked == [("arm64", None)]
    assert dict(facts(Run(root)))["CPU kernels that built this page"] == "arm64"
    for kind in ("default", "portable"):
        with pytest.raises(UserError, match=rf"this machine has no {kind} kernels; choose among arm64\."):
            run_all(root, [kind], [1])


@pytest.mark.slow
def test_portable_kernels_are_set_in_the_params_and_others_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, asked = copy_tiny(tmp_path / "repo"), []
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)

    def repro(folder: Path, _: list[str], environ: dict[str, str], jobs: int) -> int:
        asked.append((kernels_of(folder), environ.get("ATEN_CPU_CAPABILITY")))
        return 1

    monkeypatch.setattr(runs, "repro", repro)
    for kind in ("default", "portable"):
        assert run_all(root, [kind], [1]) == 1
    assert asked == [(kernels_here(), "default"), ("portable", None)]


def test_a_folder_that_cannot_be_written_is_reported_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(copy_tiny(tmp_path / "repo"))
    Path(".rehearsal").symlink_to("/proc/self/fdinfo")  # nobody can create files there
    monkeypatch.setattr("sys.argv", ["make claims", "--seeds", "1", "--kernels", "default"])
    with pytest.raises(SystemExit) as ended:
        runs.main()
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.slow
def test_claims_run_the_pipeline_in_separate_folders_and_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    root = copy_tiny(tmp_path / "repo")
    before, lock = ((root / name).read_bytes() for name in ("params.yaml", "dvc.lock"))
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    arguments: dict[str, Any] = {"methods": ["reflect_rl"], "profile": "tiny"}
    assert run_all(root, ["default"], [1], **arguments, jobs=2) == 0
    file = root / "results/published/profiles/tiny/reflect_rl/default-1.json"
    assert not (root / "results/published/reflect_rl").exists(), "that is the default's"
    first = json.loads(file.read_text())
    assert (first["kernels"], first["seed"]) == ("default", 1)
    assert "results/reflect_rl/reflect_rl/metrics.json" in first["outputs"]
    assert (root / "params.yaml").read_bytes() == before
    assert (root / "dvc.lock").read_bytes() == lock
    mine = collected(root / ".rehearsal/claims-default-1-tiny", "default")
    assert told(mine, [first])[0].startswith(
        f"Reflect-RL: {len(first['outputs'])} of {len(first['outputs'])} outputs equal"
    )

    capfd.readouterr()
    assert run_all(root, ["default"], [1], **arguments) == 0
    again = capfd.readouterr().out
    assert "reflect_rl-finetune" not in again
    assert json.loads(file.read_text()) == first
