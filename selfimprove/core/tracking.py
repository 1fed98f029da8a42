"""Curves of a running stage, written to TensorBoard event files, W&B, trackio or DVCLive.

They are not stage outputs, and no output depends on them: if writing fails, the stage warns once and continues.

    tensorboard --logdir .scratch/tensorboard
"""

import os
import sys
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import Field, ValidationError

from selfimprove.core.errors import UserError, fault, for_terminal
from selfimprove.core.params import Section

PROJECT = "selfimprove"


class TrackingParams(Section):
    """Where a running stage sends its curves. Not part of any stage's identity: outputs do not depend on it."""

    report_to: Literal["none", "tensorboard", "wandb", "trackio", "dvclive"] = Field(
        default="tensorboard", description="tensorboard: event files in .scratch/tensorboard/<stage>"
    )


def check_package(params: TrackingParams) -> None:
    """Check before any work begins that the tracking package can be used.

    Raises:
        UserError: the package is not installed, or W&B has an impossible setting or no key (it would prompt on the
            terminal during the stage).
    """
    package = params.report_to
    if package not in ("none", "tensorboard") and find_spec(package) is None:
        raise UserError(
            f"tracking.report_to: {package} needs the package {package}, which is not installed; run "
            f"`.venv/bin/pip install {package}`, or set tensorboard or none."
        )
    if package != "wandb" or os.environ.get("WANDB_MODE") in ("offline", "disabled"):
        return
    import wandb

    try:
        known = wandb.login(prompt=False)
    except wandb.errors.Error:
        return  # unreachable or refused: reported with the first metrics
    except ValidationError as error:
        raise UserError(
            f"tracking.report_to: wandb refuses a setting ({fault(error)}); correct or unset its environment variable, "
            "such as WANDB_BASE_URL for base_url."
        ) from None
    if not known:
        raise UserError(
            "tracking.report_to: wandb has no key; set WANDB_API_KEY, run `wandb login`, or set WANDB_MODE=offline."
        )


class Sink(Protocol):
    """Destination of metrics."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a step."""

    def close(self) -> None:
        """Flush buffered metrics."""


class Tracker:
    """The curves of one run of a stage. The sink is opened with the first metrics."""

    def __init__(self, params: TrackingParams, stage: str, scratch: Path) -> None:
        """``scratch``: the parent of the folders that sinks write to.

        Raises:
            UserError: see ``check_package``.
        """
        check_package(params)
        self._to, self._stage, self._scratch = params.report_to, stage, scratch
        self._sink: Sink | None = None
        self._last = self._passed = 0

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write metrics by name; ``step`` counts optimiser steps, iterations or episodes.

        If a stage restarts its count (for a second set of episodes), the curve continues from the last step.
        """
        if self._to == "none" or not metrics:
            return
        if step + self._passed < self._last:
            self._passed = self._last
        self._last = step + self._passed
        try:
            if self._sink is None:
                self._sink = SINKS[self._to](self._stage, self._scratch / self._to / self._stage, self._last)
            self._sink.log(self._last, metrics)
        except Exception as error:  # no failure of a tracking package may stop the stage
            self._give_up(error)

    def close(self) -> None:
        try:
            if self._sink is not None:
                self._sink.close()
        except Exception as error:
            self._give_up(error)
        self._sink = None

    def _give_up(self, error: Exception) -> None:
        reason = for_terminal(" ".join(str(error).split())[:200]) or type(error).__name__  # it may quote a server
        print(f"{self._stage}: {self._to} failed ({reason}); the stage goes on without curves.", file=sys.stderr)
        self._to, self._sink = "none", None


class TensorBoard:
    """Event files. A resumed run writes a new file, which supersedes earlier events from its first step on."""

    def __init__(self, stage: str, folder: Path, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = Event, Summary
        folder.mkdir(parents=True, exist_ok=True)
        # TensorBoard reads a folder's files in the order of their names.
        self._file = (folder / f"events.out.tfevents.{time.time_ns():020}.{os.getpid()}").open("wb")
        self._writer = RecordWriter(self._file)
        self._write(file_version="brain.Event:2")
        self._write(step=step, session_log=SessionLog(status=SessionLog.START))

    def _write(self, **fields: Any) -> None:
        self._writer.write(self._event(wall_time=time.time(), **fields).SerializeToString())
        self._file.flush()

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._write(step=step, summary=self._summary(value=values))

    def close(self) -> None:
        self._file.close()


class _Run:
    """Base of sinks with W&B's interface."""

    _run: Any

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        self._run.finish()


class WandB(_Run):
    """Weights & Biases. The key comes from ``WANDB_API_KEY`` or ``wandb login``; ``WANDB_MODE=offline`` needs none."""

    def __init__(self, stage: str, folder: Path, step: int) -> None:
        import wandb

        folder.mkdir(parents=True, exist_ok=True)
        quiet = wandb.Settings(silent=True, login_timeout=20, console="off")
        self._run = wandb.init(project=PROJECT, name=stage, group=stage, dir=str(folder), settings=quiet)


class Trackio(_Run):
    """Trackio's local database (``trackio show --project selfimprove``)."""

    def __init__(self, stage: str, folder: Path, step: int) -> None:
        import trackio

        self._run = trackio.init(project=PROJECT, name=stage, resume="allow", embed=False)


class DvcLive:
    """DVCLive's folder of TSV files, one per metric; no DVC experiment is created."""

    def __init__(self, stage: str, folder: Path, step: int) -> None:
        from dvclive import Live

        self._live = Live(dir=str(folder), resume=True, save_dvc_exp=False, dvcyaml=None, report=None)

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._live.step = step
        for name, value in metrics.items():
            self._live.log_metric(name, value)
        self._live.make_summary()

    def close(self) -> None:
        self._live.end()


SINKS: dict[str, Callable[[str, Path, int], Sink]] = {
    "tensorboard": TensorBoard,
    "wandb": WandB,
    "trackio": Trackio,
    "dvclive": DvcLive,
}
