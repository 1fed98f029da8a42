"""Curves of running stages: they match the outputs, continue after a kill, and change no output."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import pytest

from selfimprove.core.errors import UserError
from selfimprove.core.tracking import SINKS, Sink, Tracker, TrackingParams
from tests.pipeline.workbench import Workbench, published

Curves = dict[str, list[tuple[int, float]]]


def curves(folder: Path, stage: str) -> Curves:
    """The points that TensorBoard shows for a stage, by tag, without superseded ones."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / ".scratch" / "tensorboard" / stage))
    events.Reload()
    return {tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


def table(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


def tracked(**metrics: float) -> Mapping[str, float]:
    return metrics


def test_the_points_of_a_resumed_run_supersede_the_later_ones_of_the_earlier_run(tmp_path: Path) -> None:
    for steps, loss in ((range(1, 6), 1.0), (range(4, 8), 0.5)):  # the second run resumes after step 3
        tracker = Tracker(TrackingParams(), "rise-finetune@iter1", tmp_path / ".scratch")
        for step in steps:
            tracker.log(step, tracked(loss=loss))
        tracker.close()
    found = curves(tmp_path, "rise-finetune@iter1")["loss"]
    assert found == [(step, 1.0 if step < 4 else 0.5) for step in range(1, 8)]


def test_a_stage_that_restarts_its_count_has_one_continuous_curve(tmp_path: Path) -> None:
    tracker = Tracker(TrackingParams(), "agent_r-evaluate@base", tmp_path / ".scratch")
    for step in (2, 4, 1, 3):
        tracker.log(step, tracked(episodes=step))
    tracker.close()
    assert [step for step, _ in curves(tmp_path, "agent_r-evaluate@base")["episodes"]] == [2, 4, 5, 7]


def test_nothing_is_written_if_tracking_is_off_or_nothing_was_logged(tmp_path: Path) -> None:
    Tracker(TrackingParams(), "a", tmp_path).close()
    silent = Tracker(TrackingParams(report_to="none"), "b", tmp_path)
    silent.log(1, tracked(loss=1.0))
    silent.close()
    assert list(tmp_path.iterdir()) == []


def test_a_tracking_package_that_is_not_installed_is_reported_before_anything_runs(
    bench: Workbench, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"tracking.report_to: wandb needs .*pip install wandb`, or set tensorboard"):
        Tracker(TrackingParams(report_to="wandb"), "rise-finetune@iter1", tmp_path)
    folder = bench.copy(tmp_path, {"tracking": {"report_to": "trackio"}})
    ran = bench.forks.run(folder, "rise.finetune", "base")
    assert (ran.code, len(ran.lines)) == (2, 1)
    assert ran.lines[0].startswith("rise-finetune@base: tracking.report_to: trackio needs the package trackio")
    assert not (folder / ".scratch" / "stages").exists()


def test_a_failure_to_write_curves_is_reported_once_and_raises_no_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tensorboard").write_text("in the way")
    tracker = Tracker(TrackingParams(), "rise-finetune@iter1", tmp_path)
    tracker.log(1, tracked(loss=1.0))
    tracker.log(2, tracked(loss=1.0))
    tracker.close()
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1
    assert said[0].startswith("rise-finetune@iter1: tensorboard failed (")


def test_the_error_text_of_a_tracking_server_reaches_the_terminal_escaped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(stage: str, folder: Path, step: int) -> Sink:
        raise OSError("the server says: \x1b[2J\x9b31m\u202egone")

    monkeypatch.setitem(SINKS, "tensorboard", refused)
    Tracker(TrackingParams(), "rise-finetune@iter1", tmp_path).log(1, tracked(loss=1.0))
    said = capsys.readouterr().err
    assert said.rstrip("\n").isprintable()
    assert r"the server says: \x1b[2J\x9b31m\u202egone" in said


def test_fine_tuning_and_evaluation_have_curves_that_do_not_affect_the_outputs(
    bench: Workbench, tmp_path: Path
) -> None:
    outputs = []
    for report_to in ("tensorboard", "none"):
        folder = bench.copy(tmp_path / report_to, {"tracking": {"report_to": report_to}})
        for stage, item in (("rise.finetune", "base"), ("rise.evaluate", "base")):
            ran = bench.forks.run(folder, stage, item)
            assert ran.code == 0, ran.stderr
        outputs.append(published(folder))
    assert outputs[0] == outputs[1]
    assert not (tmp_path / "none" / ".scratch" / "tensorboard").exists()
    folder = tmp_path / "tensorboard"
    trained = curves(folder, "rise-finetune@base")
    losses = [(int(row["step"]), float(row["loss"])) for row in table(folder / "results/rise/base/loss.csv")]
    assert trained["loss"] == [(step, pytest.approx(loss, rel=1e-6)) for step, loss in losses]
    assert len(trained["loss"]) > 3
    assert all(rate > 0 for _, rate in trained["tokens_per_second"])
    assert trained["learning_rate"][-1][1] < trained["learning_rate"][1][1]
    played = curves(folder, "rise-evaluate@base")
    assert played["episodes"][-1] == (6, 6)  # problems
    assert played["generated_tokens_per_second"][-1][1] > 0


def test_the_curves_of_reinforcement_learning_match_its_log(reflect_bench: Workbench, tmp_path: Path) -> None:
    folder = reflect_bench.copy(tmp_path)
    ran = reflect_bench.forks.run(folder, "reflect_rl.reinforce", "reflect_rl")
    assert ran.code == 0, ran.stderr
    found = curves(folder, "reflect_rl-reinforce@reflect_rl")
    rows = table(folder / "results/reflect_rl/reflect_rl/curves.csv")
    for name in ("success", "cost", "loss"):
        told = [(int(row["step"]), float(row[name])) for row in rows if row[name]]
        assert found[name] == [(step, pytest.approx(value, rel=1e-6, abs=1e-7)) for step, value in told], name
