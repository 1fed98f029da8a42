"""The live view: what a run is doing, told by its scratch folder, to this machine alone."""

from __future__ import annotations

import json
import os
from pathlib import Path

import psutil
import pytest
from starlette.testclient import TestClient

from selfimprove.apps.page.live import status
from selfimprove.apps.page.watch import make_app, newest
from selfimprove.core.journal import Journal
from selfimprove.core.tracking import TensorBoard


@pytest.fixture
def run(tmp_path: Path) -> Path:
    scratch = tmp_path / ".scratch"
    for name in ("locks", "logs", "timing", "stages/rise-finetune-iter1/key"):
        (scratch / name).mkdir(parents=True)
    owner = {"pid": os.getpid(), "created": psutil.Process().create_time(), "parents": []}
    (scratch / "locks/rise-finetune-iter1.owner.json").write_text(json.dumps(owner))
    dead = {**owner, "created": 1.0}
    (scratch / "locks/rise-evaluate-base.owner.json").write_text(json.dumps(dead))
    (scratch / "locks/torn.owner.json").write_text("{")
    log = "--- yesterday\nrise-finetune@iter1: 900/900\n--- today\n"
    log += "rise-finetune@iter1: 3/8 (1.0/s) \x1b[31mloss 0.5\x1b[0m\n"
    (scratch / "logs/rise-finetune@iter1.log").write_text(log)
    (scratch / "timing/rise-data.json").write_text('{"seconds": 2.5}')
    with Journal(scratch / "stages/rise-finetune-iter1/key/x.journal") as journal:
        journal.add("one", [{"text": "<b>first</b>"}])
        journal.add("two", {"turns": [{"text": "second"}]})
    events = TensorBoard("rise-finetune@iter1", scratch / "tensorboard/rise-finetune@iter1", 0)
    events.log(1, {"loss": 2.0})
    events.log(2, {"loss": 1.0})
    events.close()
    return tmp_path


def test_a_stage_at_work_is_told(run: Path) -> None:
    found = status(run)
    [stage] = found["working"]
    assert stage["stage"] == "rise-finetune@iter1"
    assert (stage["done"], stage["total"]) == (3, 8)
    assert stage["line"] == "rise-finetune@iter1: 3/8 (1.0/s) loss 0.5"
    assert stage["curves"] == {"loss": [[1, 2.0], [2, 1.0]]}
    assert stage["written"] == ["second", "<b>first</b>"]
    assert [(one["stage"], one["seconds"]) for one in found["ended"]] == [("rise-data", 2.5)]


def test_a_run_that_has_not_begun_has_nothing_to_tell(tmp_path: Path) -> None:
    found = status(tmp_path)
    assert found["working"] == found["ended"] == []
    assert newest(tmp_path) == 0.0


def test_the_server_reads_only_and_answers_this_machine_alone(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "live.html").write_text("live")
    (run / "secret").write_text("secret")
    with TestClient(make_app(run, out, rebuild=False), base_url="http://127.0.0.1") as client:
        assert client.get("/").text == "live"
        assert client.get("/status.json").json()["working"][0]["stage"] == "rise-finetune@iter1"
        assert client.get("/status.json", headers={"Host": "evil.example"}).status_code == 400
        assert client.post("/status.json").status_code == 405
        assert client.get("/%2e%2e/secret").status_code == 404
        assert client.get("/..%2fsecret").status_code == 404
