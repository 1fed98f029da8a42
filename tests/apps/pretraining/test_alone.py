"""Only one ``make pretrain`` at a time can use a scratch folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from selfimprove.apps.pretraining.__main__ import main
from selfimprove.pipeline.lock import alone


def test_a_concurrent_pretraining_is_refused_in_one_sentence_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scratch = tmp_path / "scratch"
    (scratch / "start").mkdir(parents=True)
    monkeypatch.setattr("sys.argv", ["pretrain", "--scratch", str(scratch), "--out", str(tmp_path / "out")])
    with alone(scratch / "lock", "held"), pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert capsys.readouterr().err == f"another `make pretrain` is running in {scratch}; wait for it.\n"
    assert (scratch / "start").is_dir()
    assert not (tmp_path / "out").exists()
