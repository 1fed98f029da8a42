"""``finetune_pairs``: self-play training in one call. Like ``launch``, it imports heavy modules only to train."""

from collections.abc import Sequence
from pathlib import Path

from selfimprove.core.chat import ChatFormat
from selfimprove.core.errors import UserError
from selfimprove.core.records import Pair
from selfimprove.engines.cluster.config import NO_CLUSTER, ClusterParams
from selfimprove.methods.spin.encode import encode_pairs, sequences_of
from selfimprove.methods.spin.pair_config import PairParams
from selfimprove.models.adapters import weights_key
from selfimprove.models.merging import full_weights
from selfimprove.training.dropped import warn_of_dropped
from selfimprove.training.launch import copy_untrained, finish, hold_out, launch, prepare, threads_each
from selfimprove.training.progress import Progress
from selfimprove.training.report import PairReport


def finetune_pairs(
    model_dir: Path,
    opponent_dir: Path,
    pairs: Sequence[Pair],
    out_dir: Path,
    cfg: PairParams,
    *,
    scratch: Path,
    seed: int,
    threads: int,
    progress: Progress | None = None,
    cluster: ClusterParams = NO_CLUSTER,
) -> PairReport:
    """Train ``model_dir`` to tell the experts' responses from the opponent's, and write a model folder.

    Checkpoints, launchers and exact resumption are as in ``launch.finetune``. The opponent's log-probabilities are
    computed once per pair and kept under ``scratch``, where a repeated run finds them.

    Args:
        opponent_dir: the model that generated one side of the pairs, which is also the initial model.
        out_dir: is created atomically; must not contain files yet.
        cluster: as for ``launch.finetune``.

    Raises:
        UserError: as ``launch.finetune``; or the opponent is another model, or the first loss is not that of a model
            against itself.
    """
    part = prepare(model_dir, out_dir)
    opponent = weights_key(opponent_dir)
    if not cfg.other_opponent and opponent != weights_key(model_dir):
        raise UserError(
            f"the opponent {opponent_dir} is not the initial model {model_dir}, but self-play trains the model that "
            "generated; give the same model for both, or set other_opponent: true."
        )
    encoded, counters = encode_pairs(pairs, ChatFormat.load(model_dir), cfg)
    warn_of_dropped("pairs", counters.dropped_long, len(encoded), cfg.max_length)
    if (cfg.epochs if cfg.max_train_tokens is None else cfg.max_train_tokens) == 0:
        copy_untrained(model_dir, part, out_dir)
        return PairReport(counters=counters)
    trained, measured = hold_out(encoded, lambda pair: pair.key, cfg.validation, seed)
    if not trained:
        raise UserError(
            f"no pairs remain to train on ({counters.dropped_long} longer than max_length {cfg.max_length}, "
            f"{counters.dropped_empty} with nothing to score, {len(measured)} held out); check convert's output or "
            "raise train.max_length."
        )
    # Imported late, because it imports torch and transformers.
    from selfimprove.methods.spin.pair_trainer import PairJob, train_pairs

    job = PairJob(
        model_dir=full_weights(model_dir, trust_remote_code=cfg.trust_remote_code),
        opponent_dir=full_weights(opponent_dir, trust_remote_code=cfg.trust_remote_code),
        opponent=opponent,
        out_dir=part,
        checkpoints=scratch / "checkpoints",
        scores=scratch / "opponent",
        params=cfg,
        validation=len(measured),
        seed=seed,
        threads=threads_each(cfg, threads),
        max_train_tokens=cfg.max_train_tokens,
    )
    report = launch(job, scratch, sequences_of([*trained, *measured]), train_pairs, PairReport, progress, cluster)
    finish(model_dir, part, out_dir, cfg.dtype)
    return report.model_copy(update={"counters": counters})
