"""The opponent's log-probabilities: the frozen model scores each pair once (docs/spin.md, S36).

The original computes them at every step. Scores are kept in journals in the run's scratch folder, under the names of
opponent, tokenizer and pair; a run that is called again, also with other settings, computes only what is missing.

The opponent is loaded like the model that is trained, and computes in the same precision. There are two ways to score
pairs. In float32 on a CPU every pair goes through the model by itself: its score then
depends on nothing but the opponent and the pair, to the last bit, whatever its neighbours and the number of processes,
as reproducible results need. On a GPU, and in bfloat16, pairs share micro-batches as in training: many times as fast,
and the neighbours change the last bits, as they do in every step of training there.
"""

import os
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch

from selfimprove.core.journal import Journal
from selfimprove.methods.spin.encode import EncodedPair, lengths_of, sequences_of
from selfimprove.methods.spin.objective import over_sequences, token_log_probs
from selfimprove.training.config import FinetuneParams
from selfimprove.training.job import RunJob, check_vocabulary
from selfimprove.training.loading import load_base
from selfimprove.training.objective import trained_positions
from selfimprove.training.packing import MicroBatch, lay_out
from selfimprove.training.progress import Progress
from selfimprove.training.rows import END_TO_END, MODEL_INPUTS, render
from selfimprove.training.stopping import asked

Score = tuple[float, float]
"""Sum of the log-probabilities of the scored tokens, in nats: of the real side, of the generated one."""

ALONE: MicroBatch = ((0,), (1,))
"""Both sides of one pair."""

TOLD_EVERY = 32
GROUP = 256
"""Pairs that are laid out in micro-batches at a time."""


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
    """Score this process's share of the pairs that ``folder`` does not hold yet; returns how many it scored.

    The model is loaded as for training (precision, quantisation, attention) without adapters and without dropout, and
    only if something is missing.
    """
    folder.mkdir(parents=True, exist_ok=True)
    share = pairs[rank::world]
    with _journal(folder, rank) as journal:
        missing = {pair.key: pair for pair in share if pair.key not in journal}
        if not missing:
            return 0
        model = _load(job, opponent_dir)
        check_vocabulary(model.config, sequences_of(list(missing.values())), opponent_dir)
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
    """The scores of ``pairs``, in order, when all processes have scored their shares."""
    with _journal(folder, rank) as journal:
        return [(journal[pair.key][0], journal[pair.key][1]) for pair in pairs]


def score_pairs(model: torch.nn.Module, pairs: Sequence[EncodedPair], rows: MicroBatch, job: RunJob) -> list[Score]:
    """Log-probability of either side's scored tokens, in float32 whatever the model computes in.

    ``rows`` lay out the sides of ``pairs``, numbered as ``sequences_of`` does, for one forward pass.
    """
    params, sides = job.params, sequences_of(pairs)
    order = [side for row in rows for side in row]
    inputs = render(rows, sides, dict.fromkeys(order, 1.0), 0, params.attention)
    device = next(model.parameters()).device
    inputs = {key: value.to(device) if isinstance(value, torch.Tensor) else value for key, value in inputs.items()}
    trained = trained_positions(inputs["coefficients"])
    autocast = params.dtype == "bfloat16" and params.launcher.kind != "deepspeed"  # as the trainer
    with torch.no_grad(), torch.autocast(device.type, dtype=torch.bfloat16, enabled=autocast):
        logits = _logits(model, {key: inputs[key] for key in MODEL_INPUTS if key in inputs}, trained, params)
    values = token_log_probs(logits, inputs["input_ids"][:, 1:][trained[:, :-1]])
    lengths = torch.tensor([sides[side].trained for side in order], device=device)
    sums = dict(zip(order, over_sequences(values, lengths).tolist(), strict=True))
    return [(sums[2 * index], sums[2 * index + 1]) for index in range(len(pairs))]


def _logits(
    model: torch.nn.Module, inputs: dict[str, Any], trained: torch.Tensor, params: FinetuneParams
) -> torch.Tensor:
    """[scored tokens, vocabulary]: what predicts them, in row order."""
    if not _packed(params):
        logits: torch.Tensor = model(**inputs, use_cache=False).logits
        return logits[trained]
    # The logits of a whole micro-batch would need gigabytes; fewer rows in a product may change its last bits.
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
    """Pairs that go through the model together, and the rows of their sides."""
    if not _packed(params):
        yield from (([pair], ALONE) for pair in pairs)
        return
    pairs = sorted(pairs, key=lambda pair: -len(pair.real.ids) - len(pair.generated.ids))  # alike ones need no padding
    lengths, filled = lengths_of(pairs), params.attention not in END_TO_END
    for start in range(0, len(pairs), GROUP):
        group = range(start, min(start + GROUP, len(pairs)))
        [share] = lay_out(group, lengths, params.row_tokens, params.micro_batch_tokens, 1, filled)
        for micro in share:
            held = [index for row in micro for index in row]
            place = {index: 2 * number for number, index in enumerate(held)}
            rows = tuple(tuple(place[index] + side for index in row for side in (0, 1)) for row in micro)
            yield [pairs[index] for index in held], rows


def scores_folder(job: RunJob, opponent: str, scratch: Path) -> Path:
    """Where the scores of this opponent lie: named by its weights, its tokenizer, and how it computes."""
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
    """A process writes to its own file and reads everybody's."""
    own = folder / f"{rank}.jsonl"
    return Journal(own, [file for file in sorted(folder.glob("*.jsonl")) if file != own])


def _load(job: RunJob, opponent_dir: Path) -> torch.nn.Module:
    if job.params.device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    model, _ = load_base(opponent_dir, job.params)
    assert isinstance(model, torch.nn.Module)
    return model.eval()
