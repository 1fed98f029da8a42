"""The report's data: the page shows the content of the files, for any text and with any of the files missing."""

from __future__ import annotations

import csv
import json
import re
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path

import pytest

from selfimprove.apps.page import tables
from selfimprove.apps.page.__main__ import main
from selfimprove.apps.page.build import build, write_live
from selfimprove.apps.page.chunks import write_records
from selfimprove.apps.page.episodes import BEGUN, CUT, clip, to_page
from selfimprove.apps.page.run import Run
from selfimprove.apps.report.words import row_name
from selfimprove.core.errors import UserError
from selfimprove.core.records import Attempt, Episode, Turn, read_rows
from selfimprove.methods.agent_r.play import ACTOR, GIVEN
from tests.support.reports import HOSTILE, chunk, write_reinforcement, write_rise


class Reader(HTMLParser):
    """Tags and text as a browser would see them."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read_html(path: Path) -> Reader:
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    return reader


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_rise(tmp_path / "run")
    return tmp_path / "run"


def test_index_and_chunks_contain_every_line_of_every_file(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_rise(run, count=400, examples=400)
    build(run, tmp_path / "out")
    index = chunk(tmp_path / "out", "rise-index")
    for one in index["sets"]:
        rows = [row for _, row in read_rows(run / one["path"])]
        assert one["size"] == len(rows)
        if one["phase"] == "evaluation":
            assert one["s"] == "".join(row["status"][0] for row in rows)
        read = [
            record
            for number in range(len(one["starts"]))
            for record in chunk(tmp_path / "out", f"{one['file']}-{number}")
        ]
        assert [record["i"] for record in read] == [row["id"] for row in rows]
    assert {split for _, _, split in index["tasks"]} == {"test"}


@pytest.mark.parametrize("name", ["data/kept.txt", "tables/kept.csv", "assets/kept.css", "index.html", "live.html"])
def test_a_page_never_replaces_a_folder_s_own_files(run: Path, tmp_path: Path, name: str) -> None:
    own = tmp_path / "own" / name
    own.parent.mkdir(parents=True)
    own.write_text("kept")
    for write in (lambda: build(run, tmp_path / "own"), lambda: write_live(tmp_path / "own")):
        with pytest.raises(
            UserError, match=f"the page would replace {Path(name).parts[0]} there; delete it, or name another"
        ):
            write()
    assert own.read_text() == "kept"


def test_a_page_replaces_an_earlier_one_and_keeps_other_files(run: Path, tmp_path: Path) -> None:
    write_live(tmp_path / "out")
    (tmp_path / "out/kept.txt").touch()
    build(run, tmp_path / "out")
    build(run, tmp_path / "out")
    assert (tmp_path / "out/kept.txt").exists()


def test_a_page_s_folder_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in ("file", "file/below"):
        with pytest.raises(UserError, match=r"no folder can be made there \(.*\); name another"):
            build(tmp_path, tmp_path / place)


def test_training_examples_carry_their_weights(run: Path, tmp_path: Path) -> None:
    build(run, tmp_path / "out")
    training = next(one for one in chunk(tmp_path / "out", "rise-index")["sets"] if one["phase"] == "training")
    records = chunk(tmp_path / "out", f"{training['file']}-0")
    assert [[part[1] for said in record["m"] for part in said["p"]] for record in records] == [
        [0, 0, 0, 1.0 + number] for number in range(5)
    ]


def test_chunks_are_split_by_size_and_their_first_positions_are_returned(tmp_path: Path) -> None:
    starts = write_records(tmp_path, "x", ({"n": number, "text": "y" * 100} for number in range(25)), size=1000)
    (tmp_path / "data").mkdir()
    for path in tmp_path.glob("*.js"):
        path.rename(tmp_path / "data" / path.name)
    assert len(starts) > 2
    for number, start in enumerate(starts):
        assert chunk(tmp_path, f"x-{number}")[0]["n"] == start


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_stays_text(name: str, tmp_path: Path) -> None:
    text = HOSTILE[name]
    write_rise(tmp_path / "run", texts={0: text})
    summary = json.loads((tmp_path / "run/results/summary/rise.json").read_text())
    summary["rows"]["base"]["what"] = summary["note"] = text
    (tmp_path / "run/results/summary/rise.json").write_text(json.dumps(summary))
    build(tmp_path / "run", tmp_path / "out")
    for path in (tmp_path / "out").glob("*.html"):
        page = read_html(path)
        assert all(attributes.get("src", "").startswith("assets/") for tag, attributes in page.tags if tag == "script")  # type: ignore[union-attr]
        assert not [tag for tag, _ in page.tags if tag in ("img", "svg", "iframe", "object")]
        assert not [key for _, attributes in page.tags for key in attributes if key.startswith("on")]
        assert not [one for _, one in page.tags if (one.get("href") or "").startswith("javascript:")]
    shown = "".join(read_html(tmp_path / "out/rise.html").text)
    assert text.split("\n")[0].split("\x07")[0].split("\x1b")[0].strip()[:20] in shown
    index = chunk(tmp_path / "out", "rise-index")
    assert chunk(tmp_path / "out", f"{index['sets'][0]['file']}-0")[0]["m"][1]["p"][0][0] == text


def test_the_ids_of_a_page_are_unique(run: Path, tmp_path: Path) -> None:
    build(run, tmp_path / "out")
    for path in (tmp_path / "out").glob("*.html"):
        ids = [attributes["id"] for _, attributes in read_html(path).tags if "id" in attributes]
        assert len(ids) == len(set(ids)), path.name


def test_every_page_has_a_strict_content_security_policy_and_no_external_urls(run: Path, tmp_path: Path) -> None:
    build(run, tmp_path / "out")
    pages = list((tmp_path / "out").glob("*.html"))
    assert len(pages) == 9
    for path in pages:
        page = read_html(path)
        policy = next(one["content"] for tag, one in page.tags if tag == "meta" and one.get("http-equiv"))
        assert policy is not None
        assert "default-src 'none'" in policy
        assert "script-src 'self';" in policy
        assert "unsafe" not in policy
        assert "http" not in "".join(str(one.get(key) or "") for _, one in page.tags for key in ("src", "href"))
        links = {(one.get("href") or "").partition("#")[0] for tag, one in page.tags if tag in ("a", "link")}
        links -= {"", "data:,"}
        assert all((tmp_path / "out" / link).is_file() for link in links)


def test_a_line_of_a_megabyte_is_truncated_with_a_note() -> None:
    shown = clip("x" * 1_000_000)
    assert len(shown) < CUT + 100
    assert shown.endswith("[truncated: 900,000 more characters]")


def test_a_lone_surrogate_is_replaced() -> None:
    assert clip("a\ud800b") == "a?b"


def test_damaged_lines_are_reported_and_the_others_are_shown(run: Path, tmp_path: Path) -> None:
    path = run / "results/rise/iter1/episodes.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    lines[1] = b'{"id": "torn", "turns": [\n'
    lines[2] = b'{"id": "\xff\xfe"}\n'
    lines[3] = b'["no object"]\n'
    lines[4] = b'{"id": "other", "kind": "of record"}\n'
    path.write_bytes(b"".join(lines))
    built = build(run, tmp_path / "out")
    named = [re.search(r"line (\d+)", problem) for problem in built.problems]
    assert [found[1] for found in named if found] == ["2", "3", "4", "5"]
    assert all(problem.startswith("results/rise/iter1/episodes.jsonl, line ") for problem in built.problems)
    one = next(one for one in chunk(tmp_path / "out", "rise-index")["sets"] if one["name"] == "iter1/evaluation")
    assert one["size"] == len(lines) - 4
    assert one["l"] == [1, *range(6, len(lines) + 1)]
    overview = "".join(read_html(tmp_path / "out/index.html").text)
    assert all(problem in overview for problem in built.problems)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff", b"[]", b"null", b'{"a": 1}', b'{"columns": [], "gains": [], "rates": {}, "note": "", "order": '
     b'["a"], "solid": [], "rows": {}, "last": null, "last_minus": {}}'],
)  # fmt: skip
def test_with_a_damaged_summary_the_existing_rows_are_still_shown(content: bytes, run: Path, tmp_path: Path) -> None:
    (run / "results/summary/rise.json").write_bytes(content)
    build(run, tmp_path / "out")
    shown = read_html(tmp_path / "out/rise.html").text
    assert "RISE, iteration 1" in shown
    assert "This method's report stage has not run yet" in "".join(shown)
    assert "RISE, iteration 1:" not in map(str.strip, shown), "a row without a description has no note"


def test_a_row_evaluated_again_after_the_summary_is_shown_with_its_present_metrics(run: Path, tmp_path: Path) -> None:
    """DVC replaces a row's results long before those of the report stage."""
    file = run / "results/rise/iter1/metrics.json"
    metrics = json.loads(file.read_text())
    metrics["m1@t2"] = {"mean": 0.123, "se": 0.045, "n": 12}
    file.write_text(json.dumps(metrics))
    assert build(run, tmp_path / "out").problems == []
    shown = "".join(read_html(tmp_path / "out/rise.html").text)
    assert ".123±.045" in shown
    assert "This method's report stage has not run yet on these results" in shown
    assert "minus each other row" not in shown


def test_a_run_section_that_is_not_a_mapping_is_shown_as_not_set(run: Path, tmp_path: Path) -> None:
    (run / "params.yaml").write_text("run: 3\n")
    build(run, tmp_path / "out")
    assert "not set" in "".join(read_html(tmp_path / "out/index.html").text)


def test_a_half_finished_run_shows_the_results_that_exist(run: Path, tmp_path: Path) -> None:
    (run / "results/summary/rise.json").unlink()
    (run / "results/rise/iter1/metrics.json").unlink()
    (run / "results/rise/more_sft/episodes.jsonl").unlink()
    (run / "results/rise/more_sft/metrics.json").write_text('{"m1@t1": {"mean": 0.1')
    built = build(run, tmp_path / "out")
    assert ["results/rise/more_sft/metrics.json" in problem for problem in built.problems] == [True]
    index = chunk(tmp_path / "out", "rise-index")
    assert [one["name"] for one in index["sets"]] == ["base/evaluation", "iter1/evaluation", "iter1/training"]
    found = Run(run).summaries["rise"]
    assert found["order"] == ["base"]
    (run / "results/spin/start").mkdir(parents=True)  # started, but no row is evaluated yet
    build(run, tmp_path / "out")
    assert " 1 of 4 methods evaluated" in "".join(read_html(tmp_path / "out/index.html").text)


def test_a_run_without_results_is_reported_as_such(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run/results").mkdir(parents=True)
    main(tmp_path / "run", tmp_path / "out")
    assert "run/results contains no results yet; run `make repro` first." in capsys.readouterr().err
    assert build(tmp_path / "run", tmp_path / "out").problems == []
    assert "No episodes yet." in "".join(read_html(tmp_path / "out/episodes.html").text)


def test_a_missing_folder_is_a_user_error_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"there is no such folder"):
        main(tmp_path / "none", tmp_path / "out")
    (tmp_path / "other").mkdir()
    with pytest.raises(UserError, match=r"contains neither params.yaml nor results/"):
        main(tmp_path / "other", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_other_files_in_the_output_folder_are_kept(run: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/rise-rows.png").write_bytes(b"png")
    build(run, tmp_path / "out")
    build(run, tmp_path / "out")
    assert (tmp_path / "out/rise-rows.png").read_bytes() == b"png"
    assert not [path for path in (tmp_path / "out").iterdir() if path.name.startswith(".")]


def test_concurrent_builds_are_complete_and_leftovers_of_a_killed_one_are_removed(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out/.page-killed").mkdir(parents=True)
    (tmp_path / "out/.page-killed/index.html").write_text("half")
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: build(run, tmp_path / "out"), range(8)))
    assert all(file.exists() for one in made for file in one.files)
    assert not list((tmp_path / "out").glob(".*"))


def test_csv_has_the_summary_s_numbers_and_latex_is_escaped(run: Path) -> None:
    summaries = Run(run).summaries
    rows = list(csv.DictReader(tables.as_csv(summaries).splitlines()))
    wanted = summaries["rise"]["rows"]["base"]["metrics"]["m1@t2"]
    found = next(row for row in rows if row["row"] == "base" and row["metric"] == "m1@t2")
    assert float(found["mean"]) == wanted["mean"]
    assert float(found["last_minus_row"]) == summaries["rise"]["last_minus"]["base"]["m1@t2"]["mean"]
    table = tables.results("rise", summaries["rise"], run)
    assert table is not None
    table.rows[0][0] = "50% of_a & {b} \\ $x$ ~^#"
    latex = tables.as_latex(table, "rise")
    assert r"50\% of\_a \& \{b\} \textbackslash{} \$x\$ \textasciitilde{}\textasciicircum{}\#" in latex
    assert latex.count(r"\\") == 1 + len(table.rows)
    assert latex.count("{") == latex.count("}")


def test_rows_are_named_in_words() -> None:
    assert row_name("rise", "iter2") == "RISE, iteration 2"
    assert row_name("agent_r", "more_sft") == "more SFT"
    assert row_name("reflect_rl", "reflect_rl") == "Reflect-RL"


def test_a_reinforcement_log_is_shown_as_episodes(tmp_path: Path) -> None:
    write_reinforcement(tmp_path / "run")
    log = tmp_path / "run/results/reflect_rl/reflect_rl/log.jsonl"
    log.write_text(f'{log.read_text()}{{"iter": 5, "log": [{{"batch": 0}}]}}\n')
    built = build(tmp_path / "run", tmp_path / "out")
    assert [problem.partition(":")[0] for problem in built.problems] == [
        "results/reflect_rl/reflect_rl/log.jsonl, line 5"
    ]
    index = chunk(tmp_path / "out", "reflect_rl-index")
    [one] = index["sets"]
    assert (one["name"], one["s"], one["l"]) == ("reflect_rl/reinforcement", "l" * 8, [1, 1, 2, 2, 3, 3, 4, 4])
    assert [index["runs"][run] for run in one["u"]] == ["pickup"] * 4 + ["full"] * 4
    assert one["n"] == [1, 1, 2, 2, 3, 3, 4, 4]
    record = chunk(tmp_path / "out", f"{one['file']}-0")[-1]
    assert record["i"] == "iteration 4, episode 2"
    assert record["r"] == pytest.approx(-0.2)
    assert record["m"][2]["v"]["taxi"][1] == "T: : : :P"
    said = record["m"][1]
    assert (said["p"][0][0], said["answer"], said["logprob"], said["togo"]) == ("1", "move east", -0.1, -0.9)


def test_reflect_rl_s_page_shows_results_by_curriculum_level(tmp_path: Path) -> None:
    write_reinforcement(tmp_path / "run")
    measured, learnt = tables.levels(Run(tmp_path / "run"), "reflect_rl", Run(tmp_path / "run").summaries["reflect_rl"])
    assert [row[1:] for row in measured.rows] == [
        [level, ".500±.100", ".500±.100", "4"] for level in ("pickup", "full")
    ]
    assert [row[1:] for row in learnt.rows] == [
        ["pickup", "1 to 2", "0.200", "0.150", "0.100"], ["full", "3 to 4", "0.400", "0.350", "0.100"],
    ]  # fmt: skip
    build(tmp_path / "run", tmp_path / "out")
    assert "Reinforcement learning by level" in "".join(read_html(tmp_path / "out/reflect_rl.html").text)


@pytest.mark.parametrize(("model", "run"), [(GIVEN, BEGUN), (ACTOR, "from the start"), ("student", "")])
def test_an_evaluated_episode_of_agent_r_says_where_it_began(model: str, run: str) -> None:
    said = Attempt(text="inventory", reward=0.0)
    turns = [Turn(model=one, attempts=[said], chosen=0, observation="Inventory: nothing") for one in (model, ACTOR)]
    episode = Episode(
        id="textcraft-7", env="textcraft", query="", gold="", prompt=[], turns=turns, status="unsolved", seed="1"
    )
    assert to_page(episode.model_dump())["u"] == run


def test_an_unknown_record_is_refused() -> None:
    with pytest.raises(ValueError, match="neither an episode nor an example"):
        to_page({"id": "x"})
