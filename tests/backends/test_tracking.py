"""Training curves in W&B (offline), trackio and DVCLive, with the packages themselves: a run resumed from step 2.

Runs in the optional environment .venvs/tracking (``make test-backends-tracking``). The curves are read back from the
files that each package has written.
"""

from __future__ import annotations

import csv
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from selfimprove.core.errors import UserError
from selfimprove.core.tracking import Tracker, TrackingParams

pytestmark = pytest.mark.backend

STAGE = "rise-finetune@iter1"
FIRST, SECOND = [(1, 1.0), (2, 0.5), (3, 0.25)], [(3, 0.25), (4, 0.125)]
Points = list[tuple[int, float]]


def track(to: Any, scratch: Path) -> None:
    """Log two runs of the stage; the second starts at step 3."""
    for points in (FIRST, SECOND):
        tracker = Tracker(TrackingParams(report_to=to), STAGE, scratch)
        for step, loss in points:
            tracker.log(step, {"loss": loss, "lr": 1e-3})
        tracker.close()


def test_dvclive_writes_one_file_per_metric_and_a_resumed_run_appends_to_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    track("dvclive", tmp_path)
    folder = tmp_path / "dvclive" / STAGE
    with (folder / "plots/metrics/loss.tsv").open() as file:
        found = [(int(row["step"]), float(row["loss"])) for row in csv.DictReader(file, delimiter="\t")]
    assert found == FIRST + SECOND
    assert json.loads((folder / "metrics.json").read_text()) == {"loss": 0.125, "lr": 1e-3, "step": 4}
    assert "failed" not in capsys.readouterr().err


def test_trackio_stores_one_run_per_stage_in_its_local_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from trackio import sqlite_storage

    monkeypatch.setattr(sqlite_storage, "TRACKIO_DIR", tmp_path)
    track("trackio", tmp_path)
    with sqlite3.connect(tmp_path / "selfimprove.db") as database:
        rows = database.execute("select run_name, step, metrics from metrics order by id").fetchall()
    assert {name for name, _, _ in rows} == {STAGE}
    assert [(step, json.loads(text)["loss"]) for _, step, text in rows] == FIRST + SECOND
    assert "failed" not in capsys.readouterr().err


def test_offline_wandb_stores_one_run_per_start_grouped_by_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import wandb

    monkeypatch.setenv("WANDB_MODE", "offline")
    track("wandb", tmp_path)
    wandb.teardown()  # its process has then written everything, as when a stage has ended
    files = (tmp_path / "wandb" / STAGE).glob("wandb/offline-run-*/run-*.wandb")
    assert sorted(logged(file) for file in files) == [(STAGE, FIRST), (STAGE, SECOND)]
    assert "failed" not in capsys.readouterr().err


def test_wandb_without_a_key_is_refused_before_anything_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    with pytest.raises(UserError, match="wandb has no key; set WANDB_API_KEY"):
        Tracker(TrackingParams(report_to="wandb"), STAGE, tmp_path)


def test_an_impossible_setting_of_wandb_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    wandb.teardown()  # it reads the environment once in a process
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("WANDB_BASE_URL", "wandb.example.org")
    with pytest.raises(UserError, match=r"wandb refuses a setting \(field 'base_url': .* such as WANDB_BASE_URL"):
        Tracker(TrackingParams(report_to="wandb"), STAGE, tmp_path)


def logged(file: Path) -> tuple[str, Points]:
    """The group and the (step, loss) pairs of a run that was written offline."""
    from wandb.proto.wandb_internal_pb2 import Record

    group, points = "", []
    for one in records(file.read_bytes()):
        record = Record()
        record.ParseFromString(one)
        if record.HasField("run"):
            group = record.run.run_group
        if record.HasField("history"):
            items = {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
            points.append((items["_step"], items["loss"]))
    return group, points


def records(data: bytes) -> Iterator[bytes]:
    """Records in LevelDB's log format: 32 KiB blocks of chunks (checksum, length, kind), after W&B's header."""
    place, parts = 7, b""
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:  # the end of a block is padding
            place += 32768 - place % 32768
            continue
        size, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        parts += data[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in (1, 4):  # a whole record, or its last part
            yield parts
            parts = b""
