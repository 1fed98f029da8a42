"""Self-play training: the opponent scores each pair once, compared with scoring at every step as in the original.

``BENCH=pairs make bench`` prints a table, and JSON on its last line. Three variants train the same model on the same
pairs, batches and steps: ``precomputed`` (ours), ``recomputed`` (ours, but the frozen opponent reads every micro-batch
again) and ``published`` (recomputed, both sides of a batch padded to the longest, with log-probabilities at every
position). Rates are real tokens of both sides per second of the training loop. They exclude imports, loading and the
scoring of ``precomputed``; only ``ratio_with_scoring`` includes the latter. The fastest of several alternating runs
counts.
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench.rates import print_table
from bench.training import VOCABULARY, make_model
from selfimprove.core.seeds import rng
from selfimprove.methods.spin.encode import EncodedPair, lengths_of, sequences_of
from selfimprove.methods.spin.pair_config import PairParams
from selfimprove.training.encode import EncodedExample

PROMPT = 60
ROUND = 50
OBSERVED = 0.4
"""Share of a round's tokens that belong to the observation."""


def make_pairs(count: int) -> list[EncodedPair]:
    """Seeded pairs like ReAct episodes: a prompt, then two to five rounds per side; observations are not scored."""
    random = rng("bench", "pairs", count)

    def side(prompt: list[int]) -> EncodedExample:
        ids, weights = list(prompt), [0.0] * len(prompt)
        for _ in range(random.randint(2, 5)):
            length = random.randint(ROUND // 2, 3 * ROUND // 2)
            seen = round(OBSERVED * length)
            ids += [random.randrange(VOCABULARY) for _ in range(length)]
            weights += [1.0] * (length - seen) + [0.0] * seen
        return EncodedExample(ids, weights)

    pairs = []
    for _ in range(count):
        prompt = [random.randrange(VOCABULARY) for _ in range(PROMPT)]
        pairs.append(EncodedPair(side(prompt), side(prompt)))
    return pairs


def train_once(way: str, model_dir: Path, pairs: list[EncodedPair], params: PairParams, threads: int) -> dict[str, Any]:
    """One run: real tokens per second of its loop, seconds of the opponent's scoring before it, and its losses."""
    from selfimprove.methods.spin import opponent
    from selfimprove.methods.spin.pair_trainer import PairJob, PairTrainer
    from selfimprove.training.job import join, own_threads, plan_of
    from selfimprove.training.loading import load_model

    if way == "published":
        params = params.model_copy(update={"attention": "sdpa"})  # padded batches need a mask
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = PairJob(
            model_dir=model_dir, opponent_dir=model_dir, opponent="", out_dir=folder / "out", checkpoints=folder / "c",
            scores=folder, params=params, seed=0, threads=threads,
        )  # fmt: skip
        with own_threads(job):
            scoring = 0.0
            arguments = join(job, optim="rmsprop")
            plan = plan_of(job, lengths_of(pairs), whole_epochs=True)
            model, _ = load_model(model_dir, params, 0, dropout=False)
            if way == "precomputed":
                started = time.monotonic()
                opponent.score(job, model_dir, folder / "scores", pairs)
                scoring = time.monotonic() - started
                trainer: Any = PairTrainer(model, arguments, job, pairs, plan, None)
                trainer.read_opponent(folder / "scores")
            else:
                frozen, _ = load_model(model_dir, params, 0, dropout=False)
                trainer = _recomputing(way)(model, arguments, job, pairs, plan, None)
                trainer.frozen = frozen.eval()
                trainer._opponent = [(0.0, 0.0)] * len(pairs)
            seconds = trainer.run()
            report = trainer.report(seconds, None, scoring, len(pairs))
    return {
        "tokens_per_second": report.timing.tokens_per_second,
        "seconds": seconds,
        "scoring": scoring,
        "padding": report.padding if way != "published" else trainer.padding,
        "losses": [loss for _, loss in report.loss],
    }


def _recomputing(way: str) -> Any:
    """A subclass of our trainer with the opponent in its loop; imports torch."""
    import torch

    from selfimprove.methods.spin.objective import gap, over_sequences, pair_losses, token_log_probs
    from selfimprove.methods.spin.pair_trainer import PairTrainer

    class Recomputed(PairTrainer):
        """The frozen model first reads the packed micro-batch, with logits only where needed, as in ours."""

        frozen: torch.nn.Module
        padding = 0.0

        def micro_loss(self, model: torch.nn.Module, inputs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
            hooked = self.frozen.get_output_embeddings().register_forward_pre_hook(self._only_trained)  # type: ignore
            with torch.no_grad():
                logits = self.logits_of_trained(self.frozen, inputs)
                ids, coefficients = inputs["input_ids"], inputs["coefficients"]
                values = token_log_probs(logits, ids[:, 1:][coefficients[:, 1:] != 0])
                lengths = torch.tensor([self._scored[index] for index in inputs["pairs"]]).flatten()
                scores = over_sequences(values, lengths).view(-1, 2).tolist()
            hooked.remove()
            for index, (real, generated) in zip(inputs["pairs"], scores, strict=True):
                self._opponent[index] = (real, generated)
            return super().micro_loss(model, inputs)

    class Published(Recomputed):
        """Both sides of a whole batch are right-padded to the longest; log-softmax at every position."""

        def rendered(self, share: Any, batch: Sequence[int]) -> Iterator[dict[str, Any]]:
            sides = [self._pairs[i].real for i in batch] + [self._pairs[i].generated for i in batch]
            width = max(len(side.ids) for side in sides)
            ids, labels = torch.zeros(len(sides), width, dtype=torch.long), torch.full((len(sides), width), -100)
            mask = torch.zeros(len(sides), width, dtype=torch.long)
            for row, side in enumerate(sides):
                length = len(side.ids)
                ids[row, :length], mask[row, :length] = torch.tensor(side.ids), 1
                labels[row, :length] = torch.where(torch.tensor(side.token_weights) > 0, ids[row, :length], -100)
            self.padding = 1 - float(mask.float().mean())
            return iter([{"input_ids": ids, "attention_mask": mask, "labels": labels}])

        def micro_loss(self, model: torch.nn.Module, inputs: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
            labels = inputs["labels"][:, 1:]
            learnt = labels != -100

            def scores(network: torch.nn.Module) -> torch.Tensor:
                logits = network(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits[:, :-1]
                values = logits.float().log_softmax(-1).gather(2, labels.clamp(min=0)[..., None])[..., 0]
                return torch.stack((values * learnt).sum(1).chunk(2), dim=1)

            with torch.no_grad():
                reference = scores(self.frozen)
            h = gap(scores(model), reference)
            loss = pair_losses(h, self._job.params.beta, self._job.params.loss).mean()
            metrics = torch.zeros(11)
            metrics[0] = loss
            return loss, metrics

    return Recomputed if way == "recomputed" else Published


def measure(*, pairs: int = 192, repeats: int = 2, threads: int = 1, batch_size: int = 16) -> dict[str, Any]:
    """Compare the three variants.

    ``ratio`` is ours over the original's; ``ratio_with_scoring`` also counts the scoring; ``ratio_same_trainer`` is
    ours over ours with the opponent in the loop, about 4/3, as forward and backward cost about three forwards.
    ``valid`` is false if the losses differ by more than rounding: then the variants did not do the same work.
    """
    params = PairParams(
        batch_size=batch_size, row_tokens=1024, micro_batch_tokens=8192, max_length=1024, lr=1e-5, epochs=2.0,
        save_steps=10**7, logging_steps=1, attention="segments",
    )  # fmt: skip
    data = make_pairs(pairs)
    ways = ("precomputed", "recomputed", "published")
    with tempfile.TemporaryDirectory() as folder:
        model_dir = make_model(Path(folder) / "model")
        for way in ways:
            train_once(way, model_dir, data[:batch_size], params, threads)
        runs: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
        for _ in range(repeats):
            for way in ways:
                runs[way].append(train_once(way, model_dir, data, params, threads))
    best = {way: min(runs[way], key=lambda run: run["seconds"]) for way in ways}
    ours = best["precomputed"]
    rates = {way: best[way]["tokens_per_second"] for way in ways}
    return {
        "threads": threads,
        "pairs": pairs,
        "epochs": params.epochs,
        "batch_size": batch_size,
        "real_tokens": 2 * sum(len(side.ids) for side in sequences_of(data)),
        "tokens_per_second": {way: round(rate) for way, rate in rates.items()},
        "ratio": round(rates["precomputed"] / rates["published"], 3),
        "ratio_same_trainer": round(rates["precomputed"] / rates["recomputed"], 3),
        "ratio_with_scoring": round(best["published"]["seconds"] / (ours["seconds"] + ours["scoring"]), 3),
        "scoring_seconds": round(ours["scoring"], 3),
        "padding": {way: round(best[way]["padding"], 4) for way in ways},
        "valid": all(
            abs(one - other) < 1e-3
            for way in ways[1:]
            for one, other in zip(ours["losses"], best[way]["losses"], strict=True)
        ),
    }


def show(result: dict[str, Any]) -> None:
    """Print the table for a result of ``measure``."""
    rows = [(name, f"{rate:,}", f"{result['padding'][name]:.1%}") for name, rate in result["tokens_per_second"].items()]
    title = f"Self-play training, {result['threads']} thread(s), {result['pairs']} pairs, {result['epochs']:g} epochs"
    print_table(title, ("opponent", "real tokens/s", "padding"), rows)
