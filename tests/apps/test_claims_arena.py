"""Published arenas are pooled over seeds and shown on their page as measured."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from selfimprove.apps.claims.arena import (
    ARENAS,
    END,
    MARK,
    PAGE,
    PROFILES,
    collected_arena,
    pooled_arena,
    publish_arena,
    read_arenas,
    written_arena,
)
from selfimprove.core.errors import UserError
from tests.support.repo_copy import ROOT

EMPTY = "before\n" + "".join(f"{MARK.format(env)}{END}" for env in PROFILES) + "after\n"


def estimate(mean: float) -> dict[str, Any]:
    return {"mean": mean, "se": 0.02, "n": 300}


def run(seed: int, last: float = 0.5, **more: Any) -> dict[str, Any]:
    """RISE and SPIN in one arena; the other two are missing."""
    one = {
        "metric": "em", "rows": {"base": "base", "more": "more_sft", "last": "iter1"},
        "values": {"base": estimate(0.3), "more": estimate(0.4), "last": estimate(last)},
        "minus": {"base": estimate(last - 0.3), "more": estimate(last - 0.4)},
        "warm_tokens": 1_500_000, "tokens": 600_000 + seed, "episodes": 400, "seconds": 100.0, "generated": 9000,
        "more_tokens": 600_000,
    }  # fmt: skip
    methods = {"rise": one, "agent_r": {"missing": "no results yet"}, "reflect_rl": {"missing": "other tasks"},
               "spin": deepcopy(one)}  # fmt: skip
    found = {"env": "textcraft", "tasks": 300, "same_start": True, "methods": methods,
             "between": {"rise-spin": estimate(0.1)}}  # fmt: skip
    return {"kernels": "avx2", "seed": seed, "threads": 2, "params": "p", "packages": {}, "arena": found, **more}


def page(tmp_path: Path, *runs: dict[str, Any]) -> str:
    for one in runs:
        publish_arena(one, tmp_path)
    return written_arena(EMPTY, tmp_path, ROOT / "profiles")


def test_the_page_shows_the_committed_runs() -> None:
    """If this fails, run `make docs`."""
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    assert written_arena(text, ROOT / ARENAS, ROOT / "profiles") == text


def test_without_published_runs_the_page_shows_the_command_that_creates_them(tmp_path: Path) -> None:
    text = page(tmp_path)
    assert 'No run is published yet: `make claims ARGS="--profile arena-encyclopedia"`' in text
    assert text.startswith("before\n")
    assert text.endswith("after\n")


def test_a_single_seed_and_missing_methods_are_pointed_out(tmp_path: Path) -> None:
    text = " ".join(page(tmp_path, run(17)).split())
    assert "Textcraft, 300 test tasks" in text
    assert "seed 17 on avx2 kernels. This is one seed;" in text
    assert "| RISE | em | .300±.020 | .400±.020 | .500±.020 | +.200±.020* | +.100±.020* | 1500k | 600k |" in text
    assert "- Agent-R: no results yet - Reflect-RL: other tasks" in text
    assert "| RISE | | +.100±.020* |" in text
    assert "| SPIN | -.100±.020* | |" in text
    assert "The profile arena-textcraft has changed since" in text
    assert "More than 3 standard errors above more SFT: RISE (+.100±.020), SPIN (+.100±.020)." in text
    assert "Of the last rows, by more than 3 standard errors, RISE is above SPIN." in text


def test_differences_within_three_standard_errors_are_reported_as_such(tmp_path: Path) -> None:
    one = run(17, 0.45)
    one["arena"]["methods"]["spin"]["minus"]["more"] = estimate(-0.07)
    one["arena"]["between"] = {"rise-spin": estimate(-0.05)}
    text = " ".join(page(tmp_path, one).split())
    assert "More than 3 standard errors below more SFT: SPIN (-.070±.020)." in text
    assert "Within 3 standard errors of more SFT: RISE (+.050±.020)." in text
    assert "No two methods are more than 3 standard errors apart." in text
    one["arena"]["between"] = {"rise-spin": estimate(-0.07)}
    assert "Of the last rows, by more than 3 standard errors, SPIN is above RISE." in " ".join(
        page(tmp_path, one).split()
    )


def test_seeds_are_pooled_and_a_value_missing_in_one_of_them_stays_missing(tmp_path: Path) -> None:
    one, other = run(17, 0.5), run(18, 0.7)
    other["arena"]["methods"]["spin"]["seconds"] = None
    other["arena"]["methods"]["spin"]["episodes"] = 403
    found = pooled_arena([one, other])
    rise, spin = found["methods"]["rise"], found["methods"]["spin"]
    assert rise["values"]["last"] == {"mean": pytest.approx(0.6), "se": pytest.approx(0.1), "n": 600}
    assert rise["values"]["base"]["n"] == 600  # equal in both seeds, but still pooled
    between = found["between"]["rise-spin"]  # likewise, and the only pair
    assert between == {"mean": pytest.approx(0.1), "se": pytest.approx(0.02 / 2**0.5), "n": 600}
    assert (rise["tokens"], rise["seconds"], spin["seconds"]) == (600_017.5, 100.0, None)
    assert found["methods"]["agent_r"] == {"missing": "no results yet"}
    text = " ".join(page(tmp_path, one, other).split())
    assert "seeds 17, 18 on avx2 kernels, pooled." in text
    assert "| 402 | 9k | - |" in text  # 401.5 episodes, rounded; no seconds, since one seed has none


def test_seeds_are_not_pooled_if_a_method_is_missing_in_one_of_them() -> None:
    whole, other = run(17), run(18)
    other["arena"]["methods"]["spin"] = {"missing": "no results yet"}
    with pytest.raises(UserError, match="differ in more than their seeds"):
        pooled_arena([whole, other])


def test_runs_with_different_params_are_not_pooled(tmp_path: Path) -> None:
    publish_arena(run(17), tmp_path)
    publish_arena(run(18, params="q"), tmp_path)
    with pytest.raises(UserError, match="runs on textcraft with different params"):
        read_arenas("textcraft", tmp_path)


def test_a_damaged_file_of_an_arena_is_refused_by_name(tmp_path: Path) -> None:
    publish_arena(run(17), tmp_path).write_text("{")
    with pytest.raises(UserError, match=r"textcraft-.*17\.json is not JSON .*; restore it"):
        read_arenas("textcraft", tmp_path)


def test_a_page_without_the_marks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a page lacks the marks <!-- arena textcraft"):
        written_arena("nothing", tmp_path, ROOT / "profiles")


def test_a_folder_without_results_gives_no_arena(tmp_path: Path) -> None:
    assert collected_arena(tmp_path, "avx2") is None
