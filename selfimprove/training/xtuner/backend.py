"""The ``xtuner`` backend: Agent-R's trainer in an environment of its own, with the same contract as ``finetune``.

XTuner pins package versions years older than ours, so it runs in another process with another Python. The training data
are determined here: the plan of steps is our own trainer's, and each of XTuner's micro-batches is one conversation,
never split, as ids and labels. By setting the divisor of transformers 4.48's summed token loss, every step's loss
equals our objective's, including the last partial step: steps are padded to the fixed number of micro-batches that
XTuner accumulates. Rows are not shared, so ``row_tokens`` and ``micro_batch_tokens`` have no effect. Two differences
remain: the learning rate follows XTuner's recipe (``config``), and weight decay, if any, also applies to norms.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from selfimprove.core.errors import UserError
from selfimprove.core.sums import float_sum
from selfimprove.models.adapters import WEIGHTS as ADAPTER
from selfimprove.training.checkpoints import newest_whole
from selfimprove.training.encode import EncodedExample
from selfimprove.training.job import check_ids, plan_of
from selfimprove.training.loading import load_config
from selfimprove.training.objective import example_scales
from selfimprove.training.packing import PackingPlan
from selfimprove.training.processes import reason, save_encoded, watch, worker_command, worker_environment
from selfimprove.training.progress import Progress
from selfimprove.training.report import Timing, TrainReport
from selfimprove.training.trainer import SftJob, trained_counts
from selfimprove.training.xtuner.config import XtunerRun, accumulation, config_text, zero2_text
from selfimprove.training.xtuner.models import WEIGHTS, read_trained, write_start

ENVIRONMENT = Path(".venvs/xtuner")
"""Created by ``make env-xtuner`` below the repository's root; its ``.ready-*`` marks it as complete."""

LAUNCHER = "selfimprove.training.xtuner.launch"
FILLING_TOKENS = 2


@dataclass(frozen=True)
class Layout:
    """Micro-batches in the order in which XTuner's sampler distributes them to the processes.

    ``order`` contains the index of each micro-batch's example (-1 for padding) and ``divisors`` the number that the sum
    of its token losses is divided by.
    """

    order: list[int]
    divisors: list[float]
    accumulation: int


def train_with_xtuner(job: SftJob, examples: Sequence[EncodedExample], progress: Progress | None = None) -> TrainReport:
    """Train in XTuner's environment and write the model's weights and config to ``job.out_dir``.

    Continues from the newest complete checkpoint in ``job.checkpoints``.

    Raises:
        UserError: the environment is missing, ids are outside the model's vocabulary, an example's messages have
            different weights, or training failed (with the end of the log).
    """
    started = time.monotonic()
    python = environment_python()
    params, folder = job.params, job.checkpoints.absolute()
    config, rope_factor = load_config(job.model_dir, params)
    check_ids(config, examples, job.model_dir)
    plan = plan_of(job, [len(example.ids) for example in examples])
    layout = lay_out(plan, examples, job)
    run = XtunerRun(
        folder=folder,
        params=params,
        seed=job.seed,
        threads=job.threads,
        iterations=len(layout.order) // params.launcher.processes,
        accumulation=layout.accumulation,
    )
    write_start(job.model_dir, run.model, config.rope_parameters if rope_factor is not None else None)
    resumed_at = _write_run(run, examples, layout)
    log_file = folder / "worker.log"
    code = watch(_command(python, run), _environment(job), log_file, progress)
    if code != 0 or not (run.trained / (WEIGHTS if params.lora is None else ADAPTER)).is_file():
        raise UserError(f"xtuner: training failed with exit code {code}; {log_file} ends with: {reason(log_file)}")
    read_trained(run.trained, job.model_dir, config, params, job.out_dir)
    last = newest_whole(folder)
    assert last is not None
    losses = json.loads((last / "losses.json").read_text(encoding="utf-8"))
    seconds = time.monotonic() - started
    return _report(job, plan, layout, examples, losses, rope_factor, seconds, resumed_at)


def environment_python() -> Path:
    """The Python of XTuner's environment.

    Raises:
        UserError: the environment is missing or incomplete.
    """
    folder = _root() / ENVIRONMENT
    python = folder / "bin" / "python"
    if not python.is_file() or not list(folder.glob(".ready-*")):
        raise UserError(
            "train.backend: xtuner needs its own environment, which is not installed; run 'make env-xtuner' (with "
            "XTUNER=gpu for GPUs), or set train.backend: trainer."
        )
    return python


def lay_out(plan: PackingPlan, examples: Sequence[EncodedExample], job: SftJob) -> Layout:
    """Distribute each step's examples to processes and micro-batches, longest first, so that concurrent ones are alike.

    Raises:
        UserError: an example's trained tokens have different weights, which XTuner's labels (a mask) cannot express.
    """
    processes = job.params.launcher.processes
    count = accumulation(job.params, max((len(step.examples) for step in plan.steps), default=1))
    order: list[int] = []
    divisors: list[float] = []
    for step in plan.steps:
        batch = [examples[index] for index in step.examples]
        scales = example_scales(batch, job.params.reduction, job.weight_normalization)
        dealt = sorted(zip(step.examples, scales, strict=True), key=lambda pair: -len(examples[pair[0]].ids))
        for index, scale in dealt:
            weights = {weight for weight in examples[index].token_weights if weight}
            if len(weights) > 1:
                raise UserError(
                    f"an example's messages have different weights ({', '.join(map(str, sorted(weights)))}), but "
                    "XTuner supports only a loss mask; set train.backend: trainer."
                )
            order.append(index)
            divisors.append(1.0 / (weights.pop() * scale * count * processes))
        padding = count * processes - len(batch)
        order += [-1] * padding
        divisors += [1.0] * padding
    return Layout(order, divisors, count)


def _write_run(run: XtunerRun, examples: Sequence[EncodedExample], layout: Layout) -> int:
    """Write all files that the launcher reads; returns the number of steps completed by an earlier call."""
    import numpy as np

    save_encoded(run.folder / "examples.npz", examples)
    np.savez(run.folder / "order.npz", order=np.array(layout.order), divisors=np.array(layout.divisors))
    (run.folder / "config.py").write_text(config_text(run), encoding="utf-8")
    (run.folder / "zero.json").write_text(zero2_text(run.params), encoding="utf-8")
    (run.folder / "run.json").write_text(run.model_dump_json(), encoding="utf-8")
    for name in (WEIGHTS, ADAPTER):
        (run.trained / name).unlink(missing_ok=True)
    checkpoint = newest_whole(run.folder)
    return int(checkpoint.name.removeprefix("checkpoint-")) // run.accumulation if checkpoint else 0


def _command(python: Path, run: XtunerRun) -> list[str]:
    run_file = run.folder / "run.json"
    if run.params.launcher.processes == 1:
        return [str(python), "-m", LAUNCHER, str(run_file)]
    command = worker_command(run_file, run.params.launcher)
    # Torch 2.5, in XTuner's GPU environment, does not have this option.
    options = [option for option in command[1:-2] if not option.startswith("--shutdown-timeout")]
    return [str(python), *options, LAUNCHER, str(run_file)]


def _environment(job: SftJob) -> dict[str, str]:
    # Only this repository, without the main environment's packages.
    alone = {"PYTHONPATH": str(_root()), "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
    return worker_environment(job) | alone


def _root() -> Path:
    return Path(__file__).resolve().parents[3]


def _report(
    job: SftJob,
    plan: PackingPlan,
    layout: Layout,
    examples: Sequence[EncodedExample],
    losses: Sequence[float],
    rope_factor: float | None,
    seconds: float,
    resumed_at: int,
) -> TrainReport:
    every = job.params.logging_steps
    windows = [losses[start : start + every] for start in range(0, len(losses), every)]
    curve: list[tuple[int, float]] = []
    for window in windows:
        curve.append(((curve[-1][0] if curve else 0) + len(window), float_sum(window) / len(window)))
    here = sum(len(examples[index].ids) for step in plan.steps[resumed_at:] for index in step.examples)
    tokens = plan.real_tokens + FILLING_TOKENS * layout.order.count(-1)
    return TrainReport(
        **trained_counts(plan, examples, job),
        steps=len(plan.steps),
        tokens=tokens,
        real_tokens=plan.real_tokens,
        padding=1.0 - plan.real_tokens / tokens,
        loss=curve,
        attention=job.params.attention,
        rope_factor=rope_factor,
        timing=Timing(seconds=seconds, tokens_per_second=here / max(seconds, 1e-9), resumed_at=resumed_at),
    )
