"""Online training: play, update on the episodes played, then on replayed successes (docs/reflect-rl.md, L15 to L27).

    for each iteration:
        episodes = play(the level's next tasks)       the frozen model reflects, the policy acts, dropout is off
        learn(episodes)
        learn(replay.sample())                        successes of this level only

Each of several processes holds both models once, plays its share of the episodes through an engine that shares the
trained parameters, and computes its share of the update. Gradients are summed, so weights are never sent.
"""

import sys
from dataclasses import replace
from functools import partial

from selfimprove.core.errors import UserError
from selfimprove.core.memory import gpu_memory
from selfimprove.engines.config import TransformersEngineConfig, VllmEngineConfig
from selfimprove.methods.reflect_rl.curriculum import phases
from selfimprove.methods.reflect_rl.reflector import check_reflector_engine
from selfimprove.methods.reflect_rl.rl_config import RLParams
from selfimprove.methods.reflect_rl.rl_job import RLJob, RLReport
from selfimprove.methods.reflect_rl.rl_run import Run
from selfimprove.models.adapters import complete
from selfimprove.models.merging import full_weights
from selfimprove.training.checkpoints import drop_damaged, newest_whole
from selfimprove.training.job import check_gpu
from selfimprove.training.progress import Progress


def learn(job: RLJob, progress: Progress | None = None) -> RLReport:
    """Train, and write a model folder to ``job.out_dir`` and a log to ``job.log``.

    If the process is killed at any time and called again with the same job, it resumes from its newest complete
    checkpoint. On CPU, the result is then bitwise the same as without interruption.

    Raises:
        UserError: a model cannot be loaded, a label is not a single token, a level of the curriculum has no
            iterations, a cost or loss is not finite, there is no GPU or its memory is exhausted, or more than
            ``job.max_blocked`` of the episodes are blocked.
    """
    processes = job.params.launcher.processes
    check_gpu("rl", job.params.device)
    check_reflector_engine(job.reflector_engine, processes)
    own = [cfg for cfg in (job.policy_engine, job.reflector_engine) if isinstance(cfg, TransformersEngineConfig)]
    if any(cfg.slots != "auto" and cfg.slots < processes for cfg in own):
        raise UserError(f"reflect_rl.engines: slots is below the {processes} processes of rl.launcher; raise slots.")
    phases(job.env, job.tasks, job.params.max_steps, curriculum=job.params.curriculum)  # validates before models load
    job.checkpoints.mkdir(parents=True, exist_ok=True)
    drop_damaged(job.checkpoints)
    if (checkpoint := newest_whole(job.checkpoints)) is not None:
        done = checkpoint.name.removeprefix("checkpoint-")
        print(f"rl: resuming at round {done} of {job.params.max_steps}", file=sys.stderr, flush=True)
    start, job = job.model_dir, _with_full_weights(job)
    threads = max(1, job.threads // processes)
    if job.params.launcher.kind == "single":
        with gpu_memory("rl", _less_memory(job.params)):
            report = _run(job, threads, progress)
    else:
        from selfimprove.training.fork import run_forked

        report = run_forked(
            partial(_run, job, threads),
            processes=processes,
            threads=threads,
            folder=job.checkpoints,
            progress=progress,
        )
    complete(start, job.out_dir, job.params.dtype)
    return report


def _run(job: RLJob, threads: int, progress: Progress | None) -> RLReport:
    return Run(job, threads, progress).go()


def _less_memory(params: RLParams) -> str:
    """How to learn with less memory, for an error message."""
    recompute = "" if params.gradient_checkpointing else ", or set rl.gradient_checkpointing: true"
    return f"lower rl.micro_batch_tokens ({params.micro_batch_tokens}) or the engines' slots{recompute}"


def _with_full_weights(job: RLJob) -> RLJob:
    """The job with merged adapters; called before forking, so that they are merged once."""
    policy, reflector, cfg = job.model_dir, job.reflector_dir, job.reflector_engine
    if reflector is not None and isinstance(cfg, TransformersEngineConfig | VllmEngineConfig):
        reflector = full_weights(reflector, trust_remote_code=cfg.trust_remote_code)
    policy = full_weights(policy, trust_remote_code=job.params.trust_remote_code)
    return replace(job, model_dir=policy, reflector_dir=reflector)
