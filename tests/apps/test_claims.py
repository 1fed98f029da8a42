"""Published runs: their content, the claims they support, the output of `make verify`, the pages built from them."""

from __future__ import annotations

from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from selfimprove.apps.claims.claims import CLAIMS, Claim, by_side, difference, verdicts
from selfimprove.apps.claims.pages import BEGIN, END, PAGES, with_results, written
from selfimprove.apps.claims.published import (
    FOLDER,
    collected,
    folder_of,
    identity,
    kernels_of,
    output_hashes,
    params_digest,
    pooled,
    publish,
    read_all_published,
    read_published,
)
from selfimprove.apps.claims.verify import main as verify
from selfimprove.apps.claims.verify import told
from selfimprove.core.errors import UserError
from selfimprove.core.publish import write_json
from selfimprove.pipeline.params import METHODS
from selfimprove.pipeline.verify import md5_of
from tests.support.profiles import profile
from tests.support.repo_copy import ROOT
from tests.support.sentences import refused_with

CLAIM = Claim("spin", "em", "more_sft")


def estimate(mean: float, se: float = 0.01) -> dict[str, Any]:
    return {"mean": mean, "se": se, "n": 100}


def run(kernels: str, seed: int, gain: float = 0.1, **more: Any) -> dict[str, Any]:
    """A published run of SPIN whose last row beats more SFT by ``gain``."""

    def row(mean: float) -> dict[str, Any]:
        metrics = {"em": estimate(mean), "finished": estimate(1.0)}
        return {"what": "a row", "training_tokens": 1000, "omissions": {}, "metrics": metrics}

    results = {
        "columns": ["em"], "gains": [], "rates": {"finished": "finished"}, "order": ["more_sft", "iter1"],
        "last": "iter1", "headline": "em", "rows": {"more_sft": row(0.4), "iter1": row(0.4 + gain)},
        "last_minus": {"more_sft": {"em": estimate(gain)}},
    }  # fmt: skip
    made = {"method": "spin", "kernels": kernels, "seed": seed, "threads": 2, "params": "p", "packages": {"torch": "2"}}
    return {**made, "results": results, "outputs": {"a": "1", "b": "2"}, **more}


def everywhere(**gains: float) -> list[dict[str, Any]]:
    """Runs of three seeds on two kinds of kernels; ``avx2_18=…`` sets that run's gain."""
    return [run(kind, seed, gains.get(f"{kind}_{seed}", 0.1)) for kind in ("avx2", "default") for seed in (17, 18, 19)]


def is_made(runs: list[dict[str, Any]]) -> bool:
    (verdict,) = verdicts(runs, [CLAIM])
    return verdict.made


def test_a_claim_is_made_only_if_it_holds_in_every_run_of_three_seeds_on_two_kinds_of_kernels() -> None:
    assert is_made(everywhere())
    assert not is_made(everywhere(default_18=-0.001))
    many = [run(kind, seed) for kind in ("avx2", "default") for seed in range(6)]
    assert is_made(many)
    assert not is_made([*many[:-1], run("default", 5, -0.001)])  # the pooled difference is five standard errors
    assert not is_made(everywhere()[:5])
    assert not is_made(everywhere()[:3])
    assert not is_made([run(kind, 17) for kind in ("default", "avx2", "avx512")])


def test_kernels_with_fewer_seeds_can_refute_a_claim_but_not_support_it() -> None:
    wide = run("portable", 17, 0.001)  # far within its standard error
    assert is_made([*everywhere(), wide])
    assert not is_made([*everywhere(), run("portable", 17, -0.001)])
    assert not is_made([*everywhere()[:3], run("portable", 17)])


def test_a_claim_must_exceed_three_pooled_standard_errors_on_every_kind_of_kernels() -> None:
    small = {f"default_{seed}": 0.017 for seed in (17, 18, 19)}  # pooled error of the tasks: .01 / √3 = .0058
    assert not is_made(everywhere(**small))
    assert is_made(everywhere(**dict.fromkeys(small, 0.018)))
    assert not is_made(everywhere(avx2_17=0.5))  # seeds that disagree widen the error


def test_differences_without_a_standard_error_are_grouped_by_their_side() -> None:
    differences = {
        "oracle": ({"mean": -1.0, "se": 0.0, "n": 100}, "em"),
        "same": ({"mean": 0.0, "se": 0.0, "n": 100}, "em"),
    }
    assert by_side(differences) == {
        "More than 3 standard errors below": ["oracle (-1.00±.000)"],
        "Within 3 standard errors of": ["same (+.000±.000)"],
    }


def test_if_fewer_is_better_a_claim_holds_below_zero() -> None:
    fewer = Claim("spin", "em", "more_sft", fewer=True)
    assert fewer.text == "em below more_sft"
    (verdict,) = verdicts(everywhere(), [fewer])
    assert (verdict.held, verdict.made) == (0, False)
    (verdict,) = verdicts([run(kind, seed, -0.1) for kind in ("avx2", "default") for seed in (17, 18, 19)], [fewer])
    assert (verdict.held, verdict.made) == (6, True)


def test_differences_of_shares_of_actions_have_the_error_of_independent_rows() -> None:
    runs = everywhere()
    for one in runs:
        one["results"]["rows"]["iter1"]["metrics"]["finished"] = estimate(0.96, 0.005)
        one["results"]["rows"]["more_sft"]["metrics"]["finished"] = estimate(0.99, 0.012)
    (verdict,) = verdicts(runs, [Claim("spin", "finished", "more_sft", fewer=True)])
    assert verdict.by_kernels["avx2"]["mean"] == pytest.approx(-0.03)
    assert verdict.by_kernels["avx2"]["se"] == pytest.approx(0.013 / 3**0.5)  # .013² = .005² + .012²
    assert (verdict.held, verdict.made) == (6, True)


def test_the_pooled_error_is_the_larger_of_the_tasks_and_the_seeds_error() -> None:
    assert pooled([estimate(0.1, 0.03), estimate(0.1, 0.04)]) == {"mean": 0.1, "se": 0.025, "n": 200}
    assert pooled([estimate(0.0), estimate(0.2)])["se"] == pytest.approx(0.1)


def test_nothing_was_shortened_or_left_out_in_the_published_runs_of_the_default() -> None:
    found = [
        (run["method"], run["kernels"], run["seed"], row, stage, name)
        for run in read_published(ROOT / FOLDER)
        for row, shown in run["results"]["rows"].items()
        for stage, shares in shown.get("omissions", {}).items()
        for name in shares
        if name != "cut_completions"  # a weak model may write on until max_tokens; the pages report how often
    ]
    assert found == []


def test_the_claims_are_about_rows_of_the_default_profile() -> None:
    params = profile("default")
    for claim in CLAIMS:
        assert claim.row is None or claim.row in params[claim.method]["rows"], claim


@pytest.mark.parametrize(
    "text", ["", "<<<<<<< HEAD\n", 'schema: "2.0"\n', "stages:\n  a:\n    outs:\n    - {path: b}\n", "stages: [1]\n"]
)
def test_a_damaged_dvc_lock_is_refused_in_one_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "dvc.lock").write_text(text)
    with refused_with(r"dvc\.lock"):
        output_hashes(tmp_path / "dvc.lock")


@pytest.mark.parametrize("method", METHODS)
def test_the_committed_lock_and_headline_metrics_belong_to_one_run_with_the_params(method: str) -> None:
    """After a change of the default's params, run `make repro` and commit dvc.lock with results/headline."""
    file = f"results/headline/{method}.json"
    lock = YAML(typ="safe", pure=True).load(ROOT / "dvc.lock")["stages"]
    assert md5_of(ROOT / file) == output_hashes(ROOT / "dvc.lock")[file]
    params = YAML(typ="safe", pure=True).load(ROOT / "params.yaml")
    if params != YAML(typ="safe", pure=True).load(ROOT / "profiles/default.yaml"):
        pytest.skip(
            "params.yaml differs from profiles/default.yaml, so its run, unlike the committed one, may be yet to come."
        )
    stages = [name for name in lock if name.startswith(f"{method}-")]
    assert len(stages) >= len(params[method]["rows"])
    for stage in stages:
        for key, value in lock[stage].get("params", {}).get("params.yaml", {}).items():
            assert reduce(getitem, key.split("."), params) == value, (stage, key)


def test_the_published_runs_measure_the_metrics_of_the_claims() -> None:
    """A claim about a metric that no run has would silently be left out."""
    runs = read_published(ROOT / FOLDER)
    for claim in CLAIMS:
        measured = [difference(claim, one) for one in runs if one["method"] == claim.method]
        assert measured
        assert None not in measured, claim


def test_verify_counts_equal_outputs_and_reports_which_claims_hold_here() -> None:
    published = everywhere()
    mine = run("avx512", 17, -0.1, outputs={"a": "1", "b": "other"})
    lines = told([mine], published)
    assert lines[0].startswith("SPIN: 1 of 2 outputs equal the published bytes of seed 17 on avx2; 0 do not exist here")
    assert "SPIN: 0 of the 1 published claims hold in this run." in lines
    assert "  em above more_sft: -0.100 ± 0.010 (claimed; in 6 of 6 runs)" in lines
    assert "SPIN: 1 of the 1 published claims hold in this run." in told([run("avx512", 17)], published)
    assert told([run("avx2", 20)], published)[0] == "SPIN: no run with seed 20 is published, so no bytes are compared."
    assert told([run("avx2", 17, params="q"), run("avx2", 17, method="rise")], published) == [
        "SPIN: params.yaml differs from that of the published runs, so nothing is compared.",
        "RISE: no run is published yet; `make claims` publishes some.",
    ]


def test_runs_with_different_params_are_not_pooled(tmp_path: Path) -> None:
    for one in (run("avx2", 17), run("avx2", 18, params="q")):
        publish(one, tmp_path)
    with pytest.raises(UserError, match=r"runs with different params: avx2-17 \(p\), avx2-18 \(q\)"):
        read_published(tmp_path)


@pytest.mark.parametrize(("key", "value"), [("params", None), ("seed", "17"), ("results", []), ("outputs", None)])
def test_a_damaged_published_run_is_reported_with_its_field(tmp_path: Path, key: str, value: object) -> None:
    file = publish(run("avx2", 17), tmp_path)
    write_json(file, {**run("avx2", 17), key: value})
    with pytest.raises(UserError, match=rf"avx2-17\.json: field '{key}' is missing or damaged; restore the file"):
        read_published(tmp_path)


def test_a_run_that_was_stopped_before_its_report_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    verify()
    said = "No method has run to its end here, so nothing is compared with the published runs.\n"
    assert capsys.readouterr() == (said, "")


def test_a_run_with_params_that_lack_a_section_is_not_collected(tmp_path: Path) -> None:
    (tmp_path / "results/summary").mkdir(parents=True)
    for text, said in (("run: null\n", "run"), ("rise: {}\n", "section 'run'")):
        (tmp_path / "params.yaml").write_text(text, encoding="utf-8")
        with pytest.raises(UserError, match=said):
            kernels_of(tmp_path)
    write_json(tmp_path / "results/summary/spin.json", {})
    with pytest.raises(UserError, match=r"spin\.json is not a summary of a run"):
        collected(tmp_path, "avx2")


def test_params_that_leave_out_keys_with_defaults_identify_a_run_too() -> None:
    params = profile("default")
    del params["run"]["threads"], params["base"]["reflect_rl"]["model"]
    assert identity(params, "avx2")["threads"] == 2
    first = params_digest(params, ["reflect_rl"])
    params["base"]["reflect_rl"]["arch"]["positions"] *= 2  # without a model, the architecture counts
    assert params_digest(params, ["reflect_rl"]) != first


def test_the_digest_ignores_the_architecture_of_a_base_with_existing_weights() -> None:
    # RISE starts from the shipped model, Reflect-RL from scratch
    for method, read in {"rise": False, "reflect_rl": True}.items():
        params = profile("default")
        name = params_digest(params, [method])
        params["base"][method]["arch"]["positions"] *= 2
        assert (params_digest(params, [method]) != name) == read
        params["base"][method]["chat_template"] = "zephyr"
        assert params_digest(params, [method]) != name


@pytest.mark.parametrize("page", PAGES)
def test_results_on_the_pages_equal_those_of_the_committed_runs(page: str) -> None:
    """If this fails, run `make docs`."""
    text = (ROOT / page).read_text(encoding="utf-8")
    assert written(text, PAGES[page], ROOT / "results/published", ROOT / "profiles") == text


@pytest.mark.parametrize("method", [None, "spin"])
def test_a_page_changes_with_the_runs_and_only_between_its_marks(method: str | None) -> None:
    page = f"before\n{BEGIN}{END}after\n"
    one, other = (with_results(page, method, runs, {"spin": "p"}) for runs in (everywhere(), everywhere(avx2_17=0.12)))
    assert one != other
    assert with_results(one, method, everywhere(), {"spin": "p"}) == one
    assert all(text.startswith("before\n") and text.endswith("after\n") for text in (one, other))
    with pytest.raises(UserError, match="lacks the marks"):
        with_results("no marks", method, everywhere(), {"spin": "p"})


def test_a_page_reports_omissions_single_seeds_changed_defaults_and_missing_runs() -> None:
    single = run("avx2", 17)
    page = f"{BEGIN}{END}"
    assert "one seed on one kind of kernels" in with_results(page, "spin", [single], {"spin": "p"}).replace("\n", " ")
    assert "one seed on one kind" not in with_results(page, "spin", everywhere(), {"spin": "p"})
    assert "Omissions" not in with_results(page, "spin", [single], {"spin": "p"})
    single["results"]["rows"]["iter1"]["omissions"] = {"evaluate": {"cramped": 0.012}}
    single["results"]["rows"]["more_sft"]["omissions"] = {"evaluate": {"cramped": 0.01, "cut_completions": 0.034}}
    reported = with_results(page, "spin", [single], {"spin": "p"}).replace("\n", " ")
    assert "SPIN, evaluate: cramped 1.2 % (iter1); SPIN, evaluate: cut completions 3.4 % (more_sft)." in reported
    assert "has changed since" not in with_results(page, "spin", [single], {"spin": "p"})
    old = with_results(page, "spin", [single], {"spin": "q"})
    assert "The default of SPIN has changed since" in old.replace("\n", " ")
    assert "No run of RISE is published yet" in with_results(page, "rise", [single], {"spin": "p"})


def test_a_method_s_page_shows_another_profile_s_runs_between_separate_marks(tmp_path: Path) -> None:
    for kernels in ("avx2", "default"):
        publish(run(kernels, 17), folder_of("rise-long", tmp_path))
    mark = "<!-- results of rise-long: `make docs` -->\n"
    page = written(f"{BEGIN}{END}between\n{mark}{END}after\n", "spin", tmp_path, ROOT / "profiles")
    default, marked, long = page.partition(f"between\n{mark}")
    assert marked
    assert long.endswith(f"{END}after\n")
    assert "No run of SPIN is published yet: `make claims` makes them." in default
    assert "| em above more_sft | +.100±.010* | +.100±.010* | 2 of 2 | no |" in long
    assert "The profile rise-long has changed since" in long.replace("\n", " ")
    assert written(page, "spin", tmp_path, ROOT / "profiles") == page
    rise = written(page, "rise", tmp_path, ROOT / "profiles")
    assert 'No run of RISE is published yet: `make claims ARGS="--profile rise-long"` makes them.' in rise
    with pytest.raises(UserError, match="no profile 'rise-lnog'"):
        written(page.replace("rise-long:", "rise-lnog:"), "spin", tmp_path, ROOT / "profiles")


def test_verify_compares_a_run_with_published_runs_of_the_same_params(tmp_path: Path) -> None:
    publish(run("avx2", 17), tmp_path)
    publish(run("avx2", 17, -0.1, params="q", outputs={"a": "3"}), folder_of("rise-long", tmp_path))
    lines = told([run("avx2", 17, params="q", outputs={"a": "3"})], read_all_published(tmp_path))
    assert lines[0].startswith("SPIN: 1 of 1 outputs equal the published bytes of seed 17 on avx2")
    assert "  em above more_sft: +0.100 ± 0.010 (not claimed; in 0 of 1 runs)" in lines


def test_the_first_page_lists_each_method_s_claims_made_and_not_made() -> None:
    page = f"{BEGIN}{END}"
    assert "| SPIN | em above more_sft | none |" in with_results(page, None, everywhere(), {"spin": "p"})
    assert "| SPIN | none | em above more_sft (5 of 6) |" in with_results(
        page, None, everywhere(avx2_18=-0.01), {"spin": "p"}
    )
    runs = [*everywhere(), *(one | {"method": "rise"} for one in everywhere())]
    for one in runs[6:]:  # RISE: two claims on one metric
        rows, minus = one["results"]["rows"], {"m1@t5": estimate(0.1), "em": estimate(0.1)}
        one["results"] = one["results"] | {
            "last_minus": {"base": minus, "more_sft": minus},
            "rows": rows | {"base": rows["iter1"]},
        }
    text = with_results(page, None, runs, {"spin": "p", "rise": "p"})
    assert "| RISE | m1@t5 above base, more_sft | none |" in text
    assert "3 claims are tested with the default; 3 are made" in text


def test_a_claim_is_not_made_if_a_run_of_its_method_lacks_the_row() -> None:
    lacking = run("avx2", 20)
    lacking["results"]["last_minus"] = {}
    assert not is_made([*everywhere(), lacking])


def test_the_digest_of_the_params_includes_the_threads_but_not_the_seed() -> None:
    params = profile("default")
    name = params_digest(params)
    params["run"]["seed"] += 1
    assert params_digest(params) == name
    params["run"]["threads"] += 1
    assert params_digest(params) != name
