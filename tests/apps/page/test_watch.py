"""The live view: reports what a run is doing, based on its scratch folder, and only to this machine."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from selfimprove.apps.page.build import write_live
from selfimprove.apps.page.live import _CONTROL, status
from selfimprove.apps.page.watch import make_app, newest, watch
from selfimprove.core.errors import UserError
from selfimprove.core.tracking import TensorBoard
from tests.support.reports import write_scratch


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "results").mkdir()
    write_scratch(tmp_path)
    return tmp_path


def test_a_running_stage_is_reported(run: Path) -> None:
    found = status(run)
    [stage] = found["working"]
    assert stage["stage"] == "rise-finetune@iter1"
    assert (stage["done"], stage["total"]) == (3, 8)
    assert stage["line"] == "rise-finetune@iter1: 3/8 (1.0/s) loss 0.5"
    assert stage["curves"] == {"loss": [[1, 2.0], [2, 1.0]]}
    assert stage["written"] == ["second", "<b>first</b>"]
    assert [(one["stage"], one["seconds"]) for one in found["ended"]] == [("rise-data", 2.5)]


def test_gpus_are_reported_as_by_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\necho 'NVIDIA H100, 97, 61234, 81559'\necho 'NVIDIA H100, [N/A], 12, 81559'\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    first, second = status(tmp_path)["gpus"]
    assert first == {"name": "NVIDIA H100", "use": "97", "used": "61234", "total": "81559"}
    assert second["use"] == "[N/A]"
    tool.write_text("#!/bin/sh\nexit 9\n")  # the driver is not loaded
    assert status(tmp_path)["gpus"] == []


def test_a_port_in_use_is_a_user_error_before_anything_is_printed_or_written(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            UserError, match=rf"cannot listen at 127.0.0.1, port {port} \(Address already in use\); choose"
        ):
            watch(port, run, run / "out")
    assert capsys.readouterr().out == ""
    assert not (run / "out").exists()


def test_a_run_that_has_not_started_has_an_empty_status(tmp_path: Path) -> None:
    found = status(tmp_path)
    assert found["working"] == found["ended"] == []
    assert newest(tmp_path) == 0.0


@given(st.text(alphabet="a \t\r\n\x1b[3m", max_size=30))
def test_blanks_before_a_carriage_return_are_removed_with_it(text: str) -> None:
    assert _CONTROL.sub("", text) == re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|[^\S\n]*\r", "", text)


def test_blanks_without_a_carriage_return_are_read_in_linear_time() -> None:
    blanks = " " * 400_000  # in quadratic time ten minutes, beyond every test's limit
    assert _CONTROL.sub("", blanks) == blanks


def test_results_that_vanish_while_they_are_listed_do_not_end_the_watch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "results/rise").mkdir(parents=True)
    (tmp_path / "results/rise/a").write_text("1")
    (tmp_path / "results/rise/gone").symlink_to(tmp_path / "nowhere")
    assert newest(tmp_path) == (tmp_path / "results/rise/a").stat().st_mtime

    def vanished(*_: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(Path, "glob", vanished)
    assert newest(tmp_path) == 0.0


def test_the_server_is_read_only_and_answers_only_this_machine(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "live.html").write_text("live")
    (run / "secret").write_text("secret")
    with TestClient(make_app(run, out, rebuild=False), base_url="http://127.0.0.1") as client:
        assert client.get("/").text == "live"
        assert client.get("/status.json").json()["working"][0]["stage"] == "rise-finetune@iter1"
        assert client.get("/status.json", headers={"Host": "evil.example"}).status_code == 400
        assert client.post("/status.json").status_code == 405
        assert client.get("/rise.html").status_code == 503  # not built yet
        assert client.get("/%2e%2e/secret").status_code == 404
        assert client.get("/..%2fsecret").status_code == 404


def test_the_report_s_data_which_are_scripts_are_refused_to_other_web_pages(run: Path, tmp_path: Path) -> None:
    (tmp_path / "rise-0.js").write_text("chunk()")
    with TestClient(make_app(run, tmp_path, rebuild=False), base_url="http://127.0.0.1") as client:
        for path in ("/rise-0.js", "/status.json", "/missing.js"):
            assert client.get(path).headers["Cross-Origin-Resource-Policy"] == "same-origin"


def test_the_live_view_is_available_before_the_report(tmp_path: Path) -> None:
    write_live(tmp_path)
    with TestClient(make_app(tmp_path, tmp_path, rebuild=False), base_url="http://127.0.0.1") as client:
        assert "<h1>Live</h1>" in client.get("/").text
        assert client.get("/assets/live.js").status_code == 200


def test_a_stage_that_has_just_started_is_shown_as_starting(run: Path) -> None:
    with (run / ".scratch/logs/rise-finetune@iter1.log").open("a") as log:
        log.write("--- again\n")
    [stage] = status(run)["working"]
    assert (stage["line"], stage["done"]) == ("Starting.", None)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (".scratch/timing/rise-data.json", '{"seconds": NaN}'),
        (".scratch/timing/rise-data.json", "[" * 5000),
        (".scratch/locks/torn.owner.json", '{"pid": 1e999, "created": 1}'),
        (".scratch/locks/torn.owner.json", "[" * 5000),
        (".scratch/stages/rise-finetune-iter1/key/x.journal", "x " + "[" * 5000),
    ],
)
def test_damaged_files_do_not_prevent_the_status(file: str, text: str, run: Path) -> None:
    (run / file).write_text(text)
    with TestClient(make_app(run, run, rebuild=False), base_url="http://127.0.0.1") as client:
        found = client.get("/status.json").json()
    assert [one["stage"] for one in found["working"]] == ["rise-finetune@iter1"]
    assert [one["seconds"] for one in found["ended"]] == [None if "timing" in file else 2.5]


def test_a_curve_omits_values_that_are_not_numbers(run: Path) -> None:
    events = TensorBoard("rise-finetune@iter1", run / ".scratch/tensorboard/rise-finetune@iter1", 3)
    events.log(3, {"loss": float("nan")})
    events.close()
    [stage] = status(run)["working"]
    assert stage["curves"] == {"loss": [[1, 2.0], [2, 1.0]]}
