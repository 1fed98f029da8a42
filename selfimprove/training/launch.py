"""``finetune``: the one call a stage makes. Encodes, starts one process or many, and completes the model folder.

What any objective needs besides its own data is here too: ``prepare``, ``launch`` and ``finish``.

Light until training starts: with ``epochs: 0`` no heavy package is imported.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from pydantic import BaseModel

from selfimprove.core.chat import ChatFormat
from selfimprove.core.errors import UserError
from selfimprove.core.publish import link_copy
from selfimprove.core.records import Example
from selfimprove.models.adapters import complete
from selfimprove.models.merging import full_weights
from selfimprove.training import flash
from selfimprove.training.checkpoints import drop_damaged, newest_whole
from selfimprove.training.config import FinetuneParams, LauncherConfig
from selfimprove.training.dropped import warn_of_dropped
from selfimprove.training.encode import EncodedExample, encode_examples
from selfimprove.training.progress import Progress
from selfimprove.training.report import Timing, TrainReport
from selfimprove.training.stopping import SAVING_SECONDS, sigterm_interrupts

if TYPE_CHECKING:
    from selfimprove.training.job import RunJob

    Job = TypeVar("Job", bound=RunJob)

Report = TypeVar("Report", bound=BaseModel)
PROGRESS_MARK = "@step "
LOG_LINES = 6
LAUNCHED = "SELFIMPROVE_LAUNCHED"
"""Environment variable of the processes that ``watch`` starts: 1, their standard input is open as long as it lives."""


def finetune(
    model_dir: Path,
    examples: Sequence[Example],
    out_dir: Path,
    cfg: FinetuneParams,
    *,
    scratch: Path,
    seed: int,
    threads: int,
    weight_normalization: Literal["none", "batch"] = "none",
    max_tokens: int | None = None,
    pinned: int | None = None,
    progress: Progress | None = None,
) -> TrainReport:
    """Train ``model_dir`` on weighted examples and write a model folder: full weights, or with ``lora`` an adapter.

    Killed at any moment and called again with the same arguments, it continues from its newest whole checkpoint
    under ``scratch`` and, on CPU, ends with the same bytes and losses as an unbroken run; the place of checkpoints
    holds a hash of everything that decides the result, so no other run's can be taken.

    Args:
        out_dir: appears whole; must not hold files yet.
        scratch: folder on the same machine (and, with several nodes, shared) for checkpoints and logs.
        threads: of each process (launcher ``fork``: of all together); part of the result's identity on CPU.
        max_tokens: overrides ``cfg.max_tokens``: stop after the step that brings the tokens read to this many.
        pinned: messages that open every dialogue and are never dropped; see ``encode_examples``.
        progress: called after each step.

    Raises:
        UserError: no model, no template, ids the model does not know, no example left, or a worker that failed.
    """
    part = prepare(model_dir, out_dir)
    encoded, counters = encode_examples(examples, ChatFormat.load(model_dir), cfg.max_length, pinned=pinned)
    warn_of_dropped("examples", counters.dropped_long, len(encoded), cfg.max_length)
    limit = max_tokens if max_tokens is not None else cfg.max_tokens
    if cfg.epochs == 0 and limit is None:
        copy_untrained(model_dir, part, out_dir)
        return _nothing_trained().model_copy(update={"counters": counters})
    if not encoded:
        raise UserError(
            f"no example is left to train on ({counters.dropped_empty} without weight, {counters.dropped_long} longer "
            f"than max_length {cfg.max_length}); look at convert's output or raise finetune.max_length."
        )
    keys = [json.dumps([one.ids, one.token_weights]) for one in encoded] if cfg.validation else []
    held_out = drawn_out(keys, cfg.validation, seed)
    if len(held_out) == len(encoded):
        raise UserError(
            f"finetune.validation: {cfg.validation} holds out all {len(encoded)} examples; lower it, or add data."
        )
    encoded = [one for index, one in enumerate(encoded) if index not in held_out] + [
        encoded[index] for index in sorted(held_out)
    ]
    # Only now: this imports torch and transformers.
    from selfimprove.training.trainer import Job, train

    job = Job(
        model_dir=full_weights(model_dir, trust_remote_code=cfg.trust_remote_code),
        out_dir=part,
        checkpoints=scratch / "checkpoints",
        params=cfg,
        seed=seed,
        threads=threads_each(cfg, threads),
        weight_normalization=weight_normalization,
        max_tokens=limit,
        validation=len(held_out),
    )
    if cfg.backend == "xtuner":
        from selfimprove.training.xtuner.backend import train_with_xtuner

        name_checkpoints(job, scratch, encoded)
        report = train_with_xtuner(job, encoded, progress)
    else:
        report = launch(job, scratch, encoded, train, TrainReport, progress)
    finish(model_dir, part, out_dir, cfg.dtype)
    return report.model_copy(update={"counters": counters})


def drawn_out(keys: Sequence[str], share: float, seed: int) -> set[int]:
    """Which items are only measured: a share drawn by the seed and the items' own content, whatever their order."""
    draw = [blake2b(f"{seed}/{key}".encode(), digest_size=8).digest() for key in keys]
    return set(sorted(range(len(keys)), key=lambda index: (draw[index], index))[: round(share * len(keys))])


def prepare(model_dir: Path, out_dir: Path) -> Path:
    """Check the folders; returns where the new model is written before it appears whole.

    Raises:
        UserError: no model, or ``out_dir`` holds files.
    """
    if not (model_dir / "config.json").is_file():
        raise UserError(f"{model_dir} holds no model (config.json is missing); run the stage that makes it.")
    if out_dir.is_dir() and any(out_dir.iterdir()):
        raise UserError(f"{out_dir} is not empty; give the new model a folder of its own.")
    part = out_dir.with_name(f".{out_dir.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.parent.mkdir(parents=True, exist_ok=True)
    return part


def copy_untrained(model_dir: Path, part: Path, out_dir: Path) -> None:
    """The new model is the old one: its files get second names, since nothing writes into a finished model."""
    link_copy(model_dir, part)
    os.replace(part, out_dir)


def finish(model_dir: Path, part: Path, out_dir: Path, dtype: str) -> None:
    """Complete the written weights with the model's other files (tokenizer, template) and let the folder appear."""
    complete(model_dir, part, dtype)
    os.replace(part, out_dir)


def threads_each(cfg: FinetuneParams, threads: int) -> int:
    """Threads of each process: forks share the machine's."""
    return max(1, threads // cfg.launcher.processes) if cfg.launcher.kind == "fork" else threads


def launch(
    job: Job,
    scratch: Path,
    sequences: Sequence[EncodedExample],
    train: Callable[[Job, Sequence[EncodedExample], Progress | None], Report],
    report: type[Report],
    progress: Progress | None,
) -> Report:
    """Run ``train`` as the params' launcher says, with checkpoints in ``scratch`` under the run's identity.

    Raises:
        UserError: what ``train`` raises, or a worker that failed.
    """
    if job.params.attention == flash.NAME:
        from selfimprove.training.job import check_hardware

        check_hardware(job.params)
        job.params = flash.settle(job.params)  # rows are packed for the attention that runs
    name_checkpoints(job, scratch, sequences)
    if (checkpoint := newest_whole(job.checkpoints)) is not None:
        state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
        print(f"finetune: resuming at step {state['global_step']} of {state['max_steps']}", file=sys.stderr, flush=True)
    launcher = job.params.launcher
    if launcher.kind == "single":
        return train(job, sequences, progress)
    if launcher.kind == "fork":
        from selfimprove.training.fork import run_forked

        return run_forked(
            lambda tell: train(job, sequences, tell),
            processes=launcher.processes,
            threads=job.threads,
            folder=job.checkpoints,
            progress=progress,
        )
    return _run_workers(job, sequences, report, progress)


def name_checkpoints(job: RunJob, scratch: Path, sequences: Sequence[EncodedExample]) -> None:
    """Give the run its own folder for checkpoints, named by all that decides its result; damaged ones are dropped."""
    job.checkpoints = scratch / f"checkpoints-{_identity(job, sequences)}"
    job.checkpoints.mkdir(parents=True, exist_ok=True)
    drop_damaged(job.checkpoints)


def worker_command(job_file: Path, launcher: LauncherConfig) -> list[str]:
    """The command that starts one node's workers; with several nodes, the same on each of them."""
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={launcher.processes}"]
    if launcher.nodes == 1:
        command += ["--nnodes=1", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{_free_port()}"]
    else:
        command += [f"--nnodes={launcher.nodes}", "--rdzv-backend=c10d", f"--rdzv-endpoint={launcher.rendezvous}"]
    command += [
        f"--shutdown-timeout={SAVING_SECONDS}",
        f"--rdzv-id={job_file.parent.name}",
        "-m",
        "selfimprove.training.worker",
        str(job_file),
    ]
    return command


def save_encoded(path: Path, examples: Sequence[EncodedExample]) -> None:
    """Write encoded examples for the workers (NumPy arrays, no pickles)."""
    import numpy as np

    np.savez(
        path,
        lengths=np.array([len(example.ids) for example in examples], dtype=np.int64),
        ids=np.array([i for example in examples for i in example.ids], dtype=np.int64),
        weights=np.array([w for example in examples for w in example.token_weights], dtype=np.float64),
    )


def load_encoded(path: Path) -> list[EncodedExample]:
    """Read what ``save_encoded`` wrote."""
    import numpy as np

    examples, start = [], 0
    with np.load(path, allow_pickle=False) as arrays:
        ids, weights = arrays["ids"].tolist(), arrays["weights"].tolist()
        for length in arrays["lengths"].tolist():
            examples.append(EncodedExample(ids[start : start + length], weights[start : start + length]))
            start += length
    return examples


def _run_workers(
    job: RunJob, encoded: Sequence[EncodedExample], report: type[Report], progress: Progress | None
) -> Report:
    """Start the workers, pass their progress on, and read the report that the first one wrote."""
    folder = job.checkpoints
    save_encoded(folder / "examples.npz", encoded)
    job_file, report_file, log_file = folder / "job.json", folder / "report.json", folder / "worker.log"
    report_file.unlink(missing_ok=True)
    absolute = job.model_copy(update={key: value.absolute() for key, value in job if isinstance(value, Path)})
    job_file.write_text(absolute.model_dump_json(), encoding="utf-8")
    environment = {**os.environ, "OMP_NUM_THREADS": str(job.threads), "TOKENIZERS_PARALLELISM": "false"}
    environment["PYTHONPATH"] = os.pathsep.join([*(p for p in sys.path if p), str(Path.cwd())])
    if job.params.device == "cpu":
        environment["DS_ACCELERATOR"] = "cpu"
    command = worker_command(job_file.absolute(), job.params.launcher)
    if job.params.launcher.nodes > 1:
        print(f"finetune: run this on every other node too: {' '.join(command)}", file=sys.stderr, flush=True)
    code = watch(command, environment, log_file, progress)
    if code != 0 or not report_file.is_file():
        raise UserError(
            f"{job.params.launcher.kind}: the training processes ended with code {code}; "
            f"the end of {log_file} says: {reason(log_file)}"
        )
    return report.model_validate_json(report_file.read_text(encoding="utf-8"))


def watch(command: Sequence[str], environment: dict[str, str], log_file: Path, progress: Progress | None) -> int:
    """Run training processes to their end, pass their progress on and log the rest; returns their exit code.

    Their standard input ends when this process dies, and they are told so (``LAUNCHED``): no orphan keeps training.
    """
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**environment, LAUNCHED: "1"},
        text=True,
        errors="replace",
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        with sigterm_interrupts(), log_file.open("w", encoding="utf-8") as log:
            for line in process.stdout:
                if not line.startswith(PROGRESS_MARK):
                    log.write(line)
                    log.flush()
                elif progress is not None:
                    progress(*json.loads(line[len(PROGRESS_MARK) :]))
            return process.wait()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()


def reason(log_file: Path) -> str:
    """The last telling lines: what a worker called its error, else the end of the log before torchrun's summary."""
    lines = [line.strip() for line in log_file.read_text(encoding="utf-8").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")]
    if errors:
        return errors[0].removeprefix("error: ")
    for index, line in enumerate(lines):
        if "failed (exitcode" in line or "ChildFailedError" in line:
            lines = lines[:index]
            break
    return " | ".join(lines[-LOG_LINES:]) or "nothing"


def _identity(job: RunJob, encoded: Sequence[EncodedExample]) -> str:
    """Hash of all that decides the result: settings, data and the model's files."""
    digest = blake2b(digest_size=12)
    places = {key for key, value in job if isinstance(value, Path)}
    digest.update(job.model_dump_json(exclude=places).encode())
    for example in encoded:
        digest.update(json.dumps([example.ids, example.token_weights]).encode())
    for file in sorted(job.model_dir.iterdir()):
        if file.is_file():
            digest.update(file.name.encode())
            with file.open("rb") as handle:
                while block := handle.read(1 << 20):
                    digest.update(block)
    return digest.hexdigest()


def _nothing_trained() -> TrainReport:
    return TrainReport(
        steps=0, examples=0, tokens=0, real_tokens=0, trained_tokens=0, padding=0.0, mean_weight=0.0,
        raw_mean_weight=0.0, loss=[], timing=Timing(seconds=0.0, tokens_per_second=0.0),
    )  # fmt: skip


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
