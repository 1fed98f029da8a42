"""`make demo` runs a method end to end, draws its picture, and does not change the user's params and results."""

from __future__ import annotations

from pathlib import Path

import pytest
from filelock import FileLock

from selfimprove.apps.demo import demo
from selfimprove.core.errors import UserError
from tests.support.profiles import profile
from tests.support.repo_copy import copy_tiny, environment

pytestmark = pytest.mark.slow


def test_the_demo_ends_with_a_table_and_a_picture_and_changes_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    root = copy_tiny(tmp_path / "repo")
    before, lock = ((root / name).read_bytes() for name in ("params.yaml", "dvc.lock"))
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    assert demo(root, "tiny") == 0
    shown = capfd.readouterr().out
    assert "reflect_rl-reinforce@reflect_rl" in shown
    assert "reflect_rl-reinforce@reflect_rl' (stage " in (root / ".rehearsal/demo/log.txt").read_text()
    assert (
        "reflect_rl-finetune@policy: "
        in (root / ".rehearsal/demo/.scratch/logs/reflect_rl-finetune@policy.log").read_text()
    )
    assert all(row in shown for row in ("chance", "policy", "reflect_rl", "report/demo.png"))
    assert (root / "report/demo.png").read_bytes().startswith(b"\x89PNG")
    assert (root / "params.yaml").read_bytes() == before
    assert (root / "dvc.lock").read_bytes() == lock
    assert not (root / "results/summary").exists()


def test_a_concurrent_demo_is_refused(tmp_path: Path) -> None:
    (tmp_path / ".rehearsal/demo").mkdir(parents=True)
    with FileLock(tmp_path / ".rehearsal/demo/lock"), pytest.raises(UserError, match="another `make demo`"):
        demo(tmp_path)


def test_the_demo_profile_has_the_default_environment_and_a_single_iteration() -> None:
    params, default = profile("demo"), profile("default")
    assert params["reflect_rl"]["env"] == default["reflect_rl"]["env"]
    assert list(params["reflect_rl"]["iterations"]) == ["reflect_rl"]
    assert "more_sft" not in params["reflect_rl"]["models"]
