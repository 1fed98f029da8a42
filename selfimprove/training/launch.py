"""``finetune``, the single call of a stage: encodes, starts the training processes, completes the model folder.

``prepare``, ``launch`` and ``finish`` are the parts that other objectives share.

Heavy packages are imported only when training starts, and not at all with ``epochs: 0``.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from selfimprove.core.chat import ChatFormat
from selfimprove.core.errors import UserError
from selfimprove.core.publish import link_copy
from selfimprove.core.records import Example
from selfimprove.engines.cluster.config import NO_CLUSTER, ClusterParams
from selfimprove.models.adapters import add_file, complete
from selfimprove.models.merging import full_weights
from selfimprove.training import flash
from selfimprove.training.checkpoints import drop_damaged, newest_whole
from selfimprove.training.config import FinetuneParams, Normalization
from selfimprove.training.dropped import warn_of_dropped
from selfimprove.training.encode import EncodedExample, encode_examples
from selfimprove.training.processes import Report, run_workers
from selfimprove.training.progress import Progress
from selfimprove.training.report import TrainReport

T = TypeVar("T")

if TYPE_CHECKING:
    from selfimprove.training.job import RunJob

    Job = TypeVar("Job", bound=RunJob)


def finetune(
    model_dir: Path,
    examples: Sequence[Example],
    out_dir: Path,
    cfg: FinetuneParams,
    *,
    scratch: Path,
    seed: int,
    threads: int,
    weight_normalization: Normalization = "none",
    max_train_tokens: int | None = None,
    pinned: int | None = None,
    progress: Progress | None = None,
    cluster: ClusterParams = NO_CLUSTER,
) -> TrainReport:
    """Train ``model_dir`` on weighted examples and write a model folder: full weights, or with ``lora`` an adapter.

    If killed at any time and called again with the same arguments, it continues from its newest complete checkpoint
    under ``scratch``. On CPU, weights and losses are then bitwise the same as without interruption. The checkpoint
    folder's name contains a hash of everything that affects the result, so another run's checkpoint is never used.

    Args:
        out_dir: is created atomically; must not contain files yet.
        scratch: folder for checkpoints and logs, on the same machine (and shared, with several nodes).
        threads: per process (launcher ``fork``: in total); affects the result on CPU.
        max_train_tokens: overrides ``cfg.max_train_tokens``: training stops after the step that brings the number of
            tokens read to at least this value. 0, the budget of a control of an untrained row, trains nothing.
        pinned: number of messages at the start of every dialogue that are never dropped; see ``encode_examples``.
        progress: called after each step.
        cluster: starts the processes on several nodes.

    Raises:
        UserError: no model or template, ids outside the model's vocabulary, no example left, or a worker failed.
    """
    part = prepare(model_dir, out_dir)
    encoded, counters = encode_examples(examples, ChatFormat.load(model_dir), cfg.max_length, pinned=pinned)
    warn_of_dropped("examples", counters.dropped_long, len(encoded), cfg.max_length)
    limit = max_train_tokens if max_train_tokens is not None else cfg.max_train_tokens
    if (cfg.epochs if limit is None else limit) == 0:
        copy_untrained(model_dir, part, out_dir)
        return TrainReport(counters=counters)
    if not encoded:
        raise UserError(
            f"no examples remain to train on ({counters.dropped_empty} without weight, {counters.dropped_long} longer "
            f"than max_length {cfg.max_length}); check convert's output or raise train.max_length."
        )
    trained, measured = hold_out(encoded, lambda one: json.dumps([one.ids, one.token_weights]), cfg.validation, seed)
    if not trained:
        raise UserError(
            f"train.validation: {cfg.validation} holds out all {len(encoded)} examples; lower it, or add data."
        )
    encoded = [*trained, *measured]
    # Imported late, because it imports torch and transformers.
    from selfimprove.training.trainer import SftJob, train

    job = SftJob(
        model_dir=full_weights(model_dir, trust_remote_code=cfg.trust_remote_code),
        out_dir=part,
        checkpoints=scratch / "checkpoints",
        params=cfg,
        seed=seed,
        threads=threads_each(cfg, threads),
        weight_normalization=weight_normalization,
        max_train_tokens=limit,
        validation=len(measured),
    )
    if cfg.backend == "xtuner":
        from selfimprove.training.xtuner.backend import train_with_xtuner

        name_checkpoints(job, scratch, encoded)
        report = train_with_xtuner(job, encoded, progress)
    else:
        report = launch(job, scratch, encoded, train, TrainReport, progress, cluster)
    finish(model_dir, part, out_dir, cfg.dtype)
    return report.model_copy(update={"counters": counters})


def hold_out(items: Sequence[T], key: Callable[[T], str], share: float, seed: int) -> tuple[list[T], list[T]]:
    """(items to train on, items for validation), each in the given order.

    A ``share`` is held out, drawn by the seed and the items' content (``key``), independent of their order.
    """
    if not share:
        return list(items), []
    draw = [blake2b(f"{seed}/{key(item)}".encode(), digest_size=8).digest() for item in items]
    held = set(sorted(range(len(items)), key=lambda index: (draw[index], index))[: round(share * len(items))])
    return [items[i] for i in range(len(items)) if i not in held], [items[i] for i in sorted(held)]


def prepare(model_dir: Path, out_dir: Path) -> Path:
    """Check the folders; returns the temporary folder that the new model is written to.

    Raises:
        UserError: there is no model, or ``out_dir`` is not empty.
    """
    if not (model_dir / "config.json").is_file():
        raise UserError(f"{model_dir} contains no model (config.json is missing); run the stage that creates it.")
    if out_dir.is_dir() and any(out_dir.iterdir()):
        raise UserError(f"{out_dir} is not empty; choose a new folder for the model.")
    part = out_dir.with_name(f".{out_dir.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.parent.mkdir(parents=True, exist_ok=True)
    return part


def copy_untrained(model_dir: Path, part: Path, out_dir: Path) -> None:
    """Hard-link the old model's files as the new model, which is safe because finished models are never written to."""
    link_copy(model_dir, part)
    os.replace(part, out_dir)


def finish(model_dir: Path, part: Path, out_dir: Path, dtype: str) -> None:
    """Add the model's other files (tokenizer, template) to the written weights and move the folder into place."""
    complete(model_dir, part, dtype)
    os.replace(part, out_dir)


def threads_each(cfg: FinetuneParams, threads: int) -> int:
    """Threads per process; forks share the machine's threads."""
    return max(1, threads // cfg.launcher.processes) if cfg.launcher.kind == "fork" else threads


def launch(
    job: Job,
    scratch: Path,
    sequences: Sequence[EncodedExample],
    train: Callable[[Job, Sequence[EncodedExample], Progress | None], Report],
    report: type[Report],
    progress: Progress | None,
    cluster: ClusterParams = NO_CLUSTER,
) -> Report:
    """Run ``train`` with the configured launcher, with checkpoints in ``scratch`` named by the run's identity.

    Raises:
        UserError: raised by ``train``, or a worker failed.
    """
    if job.params.attention == flash.NAME:
        from selfimprove.training.job import check_hardware

        check_hardware(job.params)
        job.params = flash.settle(job.params)  # rows are packed for the attention that will run
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
            partial(train, job, sequences),
            processes=launcher.processes,
            threads=job.threads,
            folder=job.checkpoints,
            progress=progress,
        )
    over_nodes = None
    if launcher.nodes > 1 and cluster.kind != "none":
        from selfimprove.training.nodes import run_on_nodes

        over_nodes = partial(run_on_nodes, cluster)
    return run_workers(job, sequences, train, report, progress, over_nodes)


def name_checkpoints(job: RunJob, scratch: Path, sequences: Sequence[EncodedExample]) -> None:
    """Give the run its own checkpoint folder, named by all that affects its result, and drop damaged checkpoints."""
    job.checkpoints = scratch / f"checkpoints-{_identity(job, sequences)}"
    job.checkpoints.mkdir(parents=True, exist_ok=True)
    drop_damaged(job.checkpoints)


def _identity(job: RunJob, encoded: Sequence[EncodedExample]) -> str:
    """Hash of everything that affects the result: settings, data and the model's files."""
    digest = blake2b(digest_size=12)
    places = {key for key, value in job if isinstance(value, Path)}
    digest.update(type(job).__qualname__.encode() + job.model_dump_json(exclude=places).encode())
    for example in encoded:
        digest.update(json.dumps([example.ids, example.token_weights]).encode())
    for file in sorted(job.model_dir.iterdir()):
        if file.is_file():
            add_file(digest, file)
    return digest.hexdigest()
