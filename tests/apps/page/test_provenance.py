"""The page names the profile of a run, and says how many params differ from it."""

from __future__ import annotations

from pathlib import Path

from selfimprove.apps.page.provenance import own_params, profile
from selfimprove.apps.page.run import Run


def test_params_that_were_changed_after_make_use_are_counted(tmp_path: Path) -> None:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles/default.yaml").write_text("run: {seed: 17, threads: 2}\n")
    (tmp_path / "profiles/small.yaml").write_text("run: {threads: 1}\n")

    def shown(name: str, params: str) -> tuple[str, int]:
        (tmp_path / "params.yaml").write_text(f"# Profile {name}.\n{params}")
        run = Run(tmp_path)
        return profile(run), len(own_params(run))

    assert shown("small", "run: {seed: 17, threads: 1}\n") == ("small", 1)
    assert shown("small", "run: {seed: 18, threads: 1}\n") == ("small with 1 changed param", 2)
    assert shown("small", "run: {seed: 18, threads: 1}\nmore: 3\n") == ("small with 2 changed params", 3)
    assert shown("of-my-own", "run: {seed: 18}\n") == ("of-my-own", 2)  # its file is not here
    (tmp_path / "params.yaml").write_text("run: {seed: 17, threads: 2}\n")
    assert profile(Run(tmp_path)) == "default"
