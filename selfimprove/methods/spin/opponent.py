"""The opponent's log-probabilities: the frozen model scores each pair once (docs/spin.md, S36).

The original computes them at every step. Here scores are kept in journals in the run's scratch folder, keyed by
opponent, tokenizer and pair. A repeated run, even with other settings, computes only the missing ones.

The opponent is loaded like the trained model and computes in the same precision. Pairs are scored in one of two ways.
In float32 on a CPU every pair is a forward pass of its own. Its score is then bitwise determined by the opponent and
the pair, independently of other pairs and of the number of processes, as reproducibility requires. On a GPU and in
bfloat16, pairs share micro-batches as in training. This is many times faster, but the other pairs of a micro-batch
change the low-order bits, as they do in every training step there.
"""

import os
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch

from selfimprove.core.journal import Journal
from selfimprove.methods.spin.encode import EncodedPair, lengths_of, sequences_of, side_rows
from selfimprove.methods.spin.objective import over_sequences, token_log_probs
from selfimprove.training.config import FinetuneParams
from selfimprove.training.job import RunJob, check_ids
from selfimprove.training.loading import load_base
from selfimprove.training.objective import trained_positions
from selfimprove.training.packing import MicroBatch, lay_out
from selfimprove.training.progress import Progress
from selfimprove.training.rows import END_TO_END, MODEL_INPUTS, render
from selfimprove.training.stopping import asked

Score = tuple[float, float]
"""Sums of the log-probabilities, in nats, of the scored tokens of the real and of the generated side."""

ALONE: MicroBatch = ((0,), (1,))
"""Rows of a micro-batch with the two sides of one pair."""

TOLD_EVERY = 32
GROUP = 256
"""Number of pairs laid out in micro-batches at a time."""


def score(
    job: RunJob,
    opponent_dir: Path,
    folder: Path,
    pairs: Sequence[EncodedPair],
    *,
    rank: int = 0,
    world: int = 1,
    progress: Progress | None = None,
) -> int:
    """Score those pairs of this process's share that are not in ``folder`` yet, and return their number.

    The model is loaded as for training (precision, quantisation, attention), but without adapters and dropout, and only
    if scores are missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    share = pairs[rank::world]
    with _journal(folder, rank) as journal:
        missing = {pair.key: pair for pair in share if pair.key not in journal}
        if not missing:
            return 0
        model = _load(job, opponent_dir)
        check_ids(model.config, sequences_of(list(missing.values())), opponent_dir)
        done = told = 0
        for batch, rows in _micro_batches(list(missing.values()), job.params):
            if asked():
                raise KeyboardInterrupt
            for pair, found in zip(batch, score_pairs(model, batch, rows, job), strict=True):
                journal.add(pair.key, found)
            done += len(batch)
            if progress is not None and rank == 0 and (done - told >= TOLD_EVERY or done == len(missing)):
                told = done
                progress(0, 0, f"opponent: {done} of {len(missing)} pairs", {})
    del model
    if job.params.device == "cuda":
        torch.cuda.empty_cache()
    return len(missing)


def read_scores(folder: Path, pairs: Sequence[EncodedPair], rank: int = 0) -> list[Score]:
    """The scores of ``pairs``, in order, all of which this process has scored or found scored."""
    with _journal(folder, rank) as journal:
        return [(journal[pair.key][0], journal[pair.key][1]) for pair in pairs]


def score_pairs(model: torch.nn.Module, pairs: Sequence[EncodedPair], rows: MicroBatch, job: RunJob) -> list[Score]:
    """Log-probabilities of both sides' scored tokens, summed in float32 even if the model computes in bfloat16.

    ``rows`` is the layout of the sides of ``pairs``, numbered as in ``sequences_of``, for one forward pass.
    """
    params, sides = job.params, sequences_of(pairs)
    order = [side for row in rows for side in row]
    inputs = render(rows, sides, dict.fromkeys(order, 1.0), 0, params.attention)
    device = next(model.parameters()).device
    inputs = {key: value.to(device) if isinstance(value, torch.Tensor) else value for key, value in inputs.items()}
    trained = trained_positions(inputs["coefficients"])
    autocast = params.dtype == "bfloat16" and params.launcher.kind != "deepspeed"  # as in the trainer
    with torch.no_grad(), torch.autocast(device.type, dtype=torch.bfloat16, enabled=autocast):
        logits = _logits(model, {key: inputs[key] for key in MODEL_INPUTS if key in inputs}, trained, params)
    values = token_log_probs(logits, inputs["input_ids"][:, 1:][trained[:, :-1]])
    lengths = torch.tensor([sides[side].trained for side in order], device=device)
    sums = dict(zip(order, over_sequences(values, lengths).tolist(), strict=True))
    return [(sums[2 * index], sums[2 * index + 1]) for index in range(len(pairs))]


def _logits(
    model: torch.nn.Module, inputs: dict[str, Any], trained: torch.Tensor, params: FinetuneParams
) -> torch.Tensor:
    """[scored tokens, vocabulary] logits that predict the scored tokens, in row order."""
    if not _packed(params):
        logits: torch.Tensor = model(**inputs, use_cache=False).logits
        return logits[trained]
    # All logits of a micro-batch would need gigabytes. (A product of fewer rows may differ in its low-order bits.)
    hook = model.get_output_embeddings().register_forward_pre_hook(lambda _, hidden: (hidden[0][trained],))  # type: ignore[operator]
    try:
        logits = model(**inputs, use_cache=False).logits
    finally:
        hook.remove()
    return logits


def _packed(params: FinetuneParams) -> bool:
    return params.device == "cuda" or params.dtype != "float32"


def _micro_batches(
    pairs: Sequence[EncodedPair], params: FinetuneParams
) -> Iterator[tuple[Sequence[EncodedPair], MicroBatch]]:
    """Batches of pairs for one forward pass each, with the rows of their sides."""
    if not _packed(params):
        yield from (([pair], ALONE) for pair in pairs)
        return
    pairs = sorted(pairs, key=lambda pair: -len(pair.real.ids) - len(pair.generated.ids))  # minimises padding
    lengths, filled = lengths_of(pairs), params.attention not in END_TO_END
    for start in range(0, len(pairs), GROUP):
        group = range(start, min(start + GROUP, len(pairs)))
        [share] = lay_out(group, lengths, params.row_tokens, params.micro_batch_tokens, 1, filled)
        for micro in share:
            held = [index for row in micro for index in row]
            place = {index: number for number, index in enumerate(held)}
            rows = side_rows(tuple(tuple(place[index] for index in row) for row in micro), params.row_tokens)
            yield [pairs[index] for index in held], rows


def scores_folder(job: RunJob, opponent: str, scratch: Path) -> Path:
    """Folder of the opponent's scores, named by a hash of its weights, its tokenizer and its numerical settings."""
    params = job.params
    digest = blake2b(digest_size=12)
    how = (params.dtype, params.attention, params.tf32, params.device, params.launcher.kind == "deepspeed")
    for part in (opponent, *how, _packed(params), job.threads, params.max_length):
        digest.update(f"{part}\x1f".encode())
    digest.update(params.lora.quantize.encode() if params.lora else b"")
    for name in ("config.json", "tokenizer.json"):
        file = job.model_dir / name
        digest.update(file.read_bytes() if file.is_file() else b"")
    return scratch / digest.hexdigest()


def _journal(folder: Path, rank: int) -> Journal:
    """A process writes to its own file and reads those of all processes."""
    own = folder / f"{rank}.jsonl"
    return Journal(own, [file for file in sorted(folder.glob("*.jsonl")) if file != own])


def _load(job: RunJob, opponent_dir: Path) -> torch.nn.Module:
    if job.params.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    model, _ = load_base(opponent_dir, job.params)
    assert isinstance(model, torch.nn.Module)
    return model.eval()
