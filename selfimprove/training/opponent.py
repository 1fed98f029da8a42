"""The opponent's log-probabilities: each pair scored once, by the frozen model, and never again (row 41).

The original computes them anew at every step. A score depends on nothing but the opponent and the pair: every pair goes
through the model by itself, so that neither its neighbours nor the number of processes change a bit of it. What is
scored is kept in journals under the run's scratch, by the names of opponent, tokenizer and pair; a run that is called
again, also with other settings, computes only what is not there.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

import torch

from selfimprove.pipeline.journal import Journal
from selfimprove.training.job import Progress, RunJob, check_vocabulary
from selfimprove.training.loading import load_base
from selfimprove.training.objective import learnt_positions
from selfimprove.training.pairs import EncodedPair, sequences_of
from selfimprove.training.rows import MODEL_INPUTS, render
from selfimprove.training.spin_objective import over_sequences, token_log_probs

Score = tuple[float, float]
"""Sum of the log-probabilities of the scored tokens, in nats: of the real side, of the generated one."""

TOLD_EVERY = 32


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
        check_vocabulary(model, sequences_of(list(missing.values())), opponent_dir)
        for done, (key, pair) in enumerate(missing.items(), start=1):
            journal.add(key, score_pair(model, pair, job))
            if progress is not None and rank == 0 and (done % TOLD_EVERY == 0 or done == len(missing)):
                progress(0, 0, f"opponent: {done} of {len(missing)} pairs")
    del model
    if job.params.device == "cuda":
        torch.cuda.empty_cache()
    return len(missing)


def read_scores(folder: Path, pairs: Sequence[EncodedPair], rank: int = 0) -> list[Score]:
    """The scores of ``pairs``, in order, when all processes have scored their shares."""
    with _journal(folder, rank) as journal:
        return [(journal[pair.key][0], journal[pair.key][1]) for pair in pairs]


def score_pair(model: torch.nn.Module, pair: EncodedPair, job: RunJob) -> Score:
    """Log-probability of either side's scored tokens, in float32 whatever the model computes in."""
    sides = sequences_of([pair])
    inputs = render(((0,), (1,)), sides, {0: 1.0, 1: 1.0}, 0, job.params.attention)
    device = next(model.parameters()).device
    inputs = {key: value.to(device) if isinstance(value, torch.Tensor) else value for key, value in inputs.items()}
    coefficients, ids = inputs["coefficients"], inputs["input_ids"]
    half = job.params.dtype == "bfloat16"
    with torch.no_grad(), torch.autocast(device.type, dtype=torch.bfloat16, enabled=half):
        logits = model(**{key: inputs[key] for key in MODEL_INPUTS if key in inputs}, use_cache=False).logits[:, :-1]
    predicting = learnt_positions(coefficients)[:, :-1]
    values = token_log_probs(logits[predicting], ids[:, 1:][predicting])
    lengths = torch.tensor([side.trained for side in sides], device=device)
    real, generated = over_sequences(values, lengths).tolist()
    return real, generated


def scores_folder(job: RunJob, opponent: str, scratch: Path) -> Path:
    """Where the scores of this opponent lie: named by its weights, its tokenizer, and how it computes."""
    params = job.params
    digest = blake2b(digest_size=12)
    for part in (opponent, params.dtype, params.attention, params.tf32, params.device, job.threads, params.max_length):
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
    model, _ = load_base(opponent_dir, job.params)
    model.eval()
    if job.params.device == "cuda" and not getattr(model, "is_quantized", False):
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        model.to("cuda")
    assert isinstance(model, torch.nn.Module)
    return model
