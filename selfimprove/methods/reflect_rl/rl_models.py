"""What each process of a run holds: the policy in training, the engine that plays with its weights, the reflector."""

from pathlib import Path
from typing import NamedTuple

import torch
from transformers.utils.import_utils import enable_tf32

from selfimprove.engines.config import TransformersEngineConfig
from selfimprove.engines.cpu.batching import batch_sizes, stored_parameters
from selfimprove.engines.cpu.engine import TransformersEngine
from selfimprove.methods.reflect_rl.reflector import Reflector, make_reflector, shared_out
from selfimprove.methods.reflect_rl.rl_job import RLJob
from selfimprove.methods.reflect_rl.rl_policy import Policy
from selfimprove.methods.reflect_rl.start import check_labels


class Models(NamedTuple):
    """One process's models.

    Attributes:
        ids: the token id of every label; None if actions are chosen from the whole vocabulary.
        critic_body: the model whose hidden states the critic reads; None: the policy's own, or there is no critic.
        engine: plays with the policy's weights.
        reflector: the frozen reflection model; None: the policy acts without reflections.
    """

    ids: dict[str, int] | None
    policy: Policy
    critic_body: Policy | None
    engine: TransformersEngine
    reflector: Reflector | None


def load_models(job: RLJob, threads: int, processes: int) -> Models:
    """Load a process's models, with its share of the engines' slots, and set torch up for them.

    Raises:
        UserError: as ``check_labels``, ``Policy`` and ``make_reflector``.
    """
    params = job.params
    torch.set_num_threads(threads)
    if params.tf32:
        enable_tf32(True)
    ids = None
    if params.shrink_head or params.mask_invalid:
        ids = check_labels(job.model_dir, job.env, job.policy_engine.chat_template)
    policy = load_policy(job, ids)
    body = load_policy(job, ids) if params.critic is not None and not params.critic.shared else None
    cfg = _share(job.policy_engine, job.model_dir, processes)
    engine = TransformersEngine(cfg, job.model_dir, threads=threads, model=policy.model)
    return Models(ids, policy, body, engine, _load_reflector(job, threads, processes))


def load_policy(job: RLJob, ids: dict[str, int] | None) -> Policy:
    """The run's initial policy, with a head of labels if the params shrink it."""
    labels = list(ids.values()) if ids is not None and job.params.shrink_head else None
    return Policy(job.model_dir, job.params.loading(job.policy_engine.context), job.seed, labels, job.params)


def _load_reflector(job: RLJob, threads: int, processes: int) -> Reflector | None:
    folder, cfg = job.reflector_dir, job.reflector_engine
    if folder is None:
        return None
    if isinstance(cfg, TransformersEngineConfig):
        return make_reflector(folder, _share(cfg, folder, processes), threads)
    return make_reflector(folder, shared_out(cfg, processes), threads)


def _share(cfg: TransformersEngineConfig, folder: Path, processes: int) -> TransformersEngineConfig:
    slots, prefill_rows = batch_sizes(cfg, stored_parameters(folder))
    if processes > 1:
        slots = max(1, slots // processes)
        prefill_rows = min(prefill_rows, slots)
    return cfg.model_copy(update={"replicas": 1, "slots": slots, "prefill_rows": prefill_rows})
