"""SET of `make exp`: what is refused before DVC writes anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from selfimprove.core.errors import UserError
from selfimprove.pipeline.exp import check_settings
from selfimprove.pipeline.profiles import compose

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def params(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "params.yaml"
    file.write_text(compose("default", ROOT / "profiles"))
    return file


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rise.rows.iter2.train.lr=abc", "rise.rows.iter2.train.lr: input should be a valid number, got 'abc'"),
        ("rise.rows.iter2.trian.lr=1e-3", "rise.rows.iter2.trian: unknown key; did you mean 'train'?"),
        ("rize.tasks.train=5", "unknown section 'rize'; did you mean 'rise'?"),
        ("typo", "SET: 'typo' is not key=value"),
        ("run.seed=18,19", "SET: 'run.seed=18,19' is not key=value with one value"),
        ("run.max_blocked=0.1", "SET: params.yaml has no line for 'run.max_blocked=0.1' to change; write +run"),
    ],
)
def test_a_setting_that_does_not_fit_is_refused_and_params_stay(params: Path, text: str, said: str) -> None:
    before = params.read_bytes()
    with pytest.raises(UserError) as caught:
        check_settings(f"run.threads=1 {text}")
    assert said in str(caught.value)
    assert params.read_bytes() == before


@pytest.mark.parametrize("text", ["run.seed=18 rise.rows.iter2.train.lr=5e-4", "+run.max_blocked=0.1", "~run.threads"])
def test_what_dvc_and_the_schemas_take_passes_and_is_left_to_dvc(params: Path, text: str) -> None:
    before = params.read_bytes()
    check_settings(text)
    assert params.read_bytes() == before
