"""One process's part of a run of reinforcement learning: iterations, log, checkpoints."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import torch
from transformers.utils.import_utils import enable_tf32

from selfimprove.core.errors import UserError
from selfimprove.core.seeds import SeedKey, key_bits
from selfimprove.core.sums import float_sum
from selfimprove.engines.config import TransformersEngineConfig
from selfimprove.engines.cpu.batching import batch_sizes, stored_parameters
from selfimprove.engines.cpu.engine import TransformersEngine
from selfimprove.engines.episodes import play_all
from selfimprove.methods.reflect_rl.curriculum import Phase, drawn, phase_at, phases
from selfimprove.methods.reflect_rl.episode import RLEpisode, details, trajectory
from selfimprove.methods.reflect_rl.reflector import Reflector, make_reflector, shared_out
from selfimprove.methods.reflect_rl.rl_group import Group
from selfimprove.methods.reflect_rl.rl_job import LOG, RLJob, RLReport
from selfimprove.methods.reflect_rl.rl_learner import Learner
from selfimprove.methods.reflect_rl.rl_objective import Decision, RLTrajectory
from selfimprove.methods.reflect_rl.rl_policy import Policy
from selfimprove.methods.reflect_rl.rl_replay import Replay
from selfimprove.methods.reflect_rl.rollout import play
from selfimprove.methods.reflect_rl.start import check_labels
from selfimprove.training.checkpoints import keep_newest, newest_whole, seal
from selfimprove.training.progress import Progress
from selfimprove.training.stopping import END, SaveClock, signals_ask

STATE = "state.json"


def _metrics(row: dict[str, Any]) -> dict[str, float]:
    """The metrics of a log row, for the progress curves."""
    fresh, replayed = row["loss"]
    values = {"success": row["succ"], "cost": row["cost"], "entropy": row["entropy"]}
    values |= {"loss": fresh, "replay_loss": replayed, "critic_loss": row["critic_loss"], "decisions": row["steps"]}
    return {name: float(value) for name, value in values.items() if value is not None}


class Run:
    """One process's part of a run."""

    def __init__(self, job: RLJob, threads: int, progress: Progress | None) -> None:
        self._job, self._params, self._progress = job, job.params, progress
        self._group = Group()
        torch.set_num_threads(threads)
        if self._params.tf32:
            enable_tf32(True)
        self._ids: dict[str, int] | None = None
        if self._params.shrink_head or self._params.mask_invalid:
            self._ids = check_labels(job.model_dir, job.env, job.policy_engine.chat_template)
        self._policy = self._load()
        critic = self._params.critic
        body = self._load() if critic is not None and not critic.shared else None
        self._learner = Learner(self._policy, self._params, self._group, job.seed, body)
        self._engine = TransformersEngine(
            self._share(job.policy_engine, job.model_dir), job.model_dir, threads=threads, model=self._policy.model
        )
        self._reflector = self._make_reflector(threads)
        self._schedule = phases(job.env, job.tasks, self._params.max_steps, curriculum=self._params.curriculum)
        self._replay = Replay(self._params.replay_buffer)
        self._phase, self._done = 0, 0
        self._clock = SaveClock()
        self._totals = dict.fromkeys(
            (
                "episodes",
                "decisions",
                "blocked",
                "shortened_prompts",
                "cut_completions",
                "unlisted_actions",
                "rollout_tokens",
            ),
            0,
        )
        self._play_seconds = 0.0
        self._first_error = ""

    def _load(self) -> Policy:
        params, job = self._params, self._job
        labels = list(self._ids.values()) if self._ids is not None and params.shrink_head else None
        loading = params.loading(job.policy_engine.context)
        return Policy(job.model_dir, loading, job.seed, labels, params)

    def _share(self, cfg: TransformersEngineConfig, folder: Path) -> TransformersEngineConfig:
        slots, prefill_rows = batch_sizes(cfg, stored_parameters(folder))
        if self._group.world > 1:
            slots = max(1, slots // self._group.world)
            prefill_rows = min(prefill_rows, slots)
        return cfg.model_copy(update={"replicas": 1, "slots": slots, "prefill_rows": prefill_rows})

    def _make_reflector(self, threads: int) -> Reflector | None:
        """The frozen reflection model on this process's share of the engine; None without one."""
        folder, cfg = self._job.reflector_dir, self._job.reflector_engine
        if folder is None:
            return None
        if isinstance(cfg, TransformersEngineConfig):
            return make_reflector(folder, self._share(cfg, folder), threads)
        return make_reflector(folder, shared_out(cfg, self._group.world), threads)

    def go(self) -> RLReport:
        """Run all iterations from the newest complete checkpoint on, write the model and return the report."""
        with asyncio.Runner() as runner:  # one event loop for all iterations, since engines keep connections in it
            try:
                return self._go(runner)
            finally:
                if self._reflector is not None:
                    runner.run(self._reflector.engine.close())

    def _go(self, runner: asyncio.Runner) -> RLReport:
        began = time.monotonic()
        frozen = None if self._reflector is None else self._reflector.weights()
        resumed = self._resume()
        with signals_ask(), self._job.log.open("ab") if self._group.first else open(os.devnull, "ab") as log:
            while self._done < self._params.max_steps and not self._spent():
                row = self._iterate(self._done, runner)
                self._done += 1
                if self._group.first:
                    log.write(json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n")
                self._save_if_due(log)
                if self._progress is not None and self._group.first:
                    self._progress(self._done, self._params.max_steps, f"success {row['succ']:.2f}", _metrics(row))
        self._check_blocked(self._totals["episodes"])  # the token budget may have ended the run early
        if self._reflector is not None and self._reflector.weights() != frozen:
            raise RuntimeError("the frozen reflection model has changed during reinforcement learning")
        self._learner.check_weights()
        if self._group.first:
            self._policy.write(self._job.out_dir, self._job.checkpoints)
        engines = [self._engine, *([] if self._reflector is None else [self._reflector.engine])]
        generated = sum(self._group.gather(sum(engine.stats.generated_tokens for engine in engines)))
        return RLReport(
            iterations=self._done,
            **self._totals,
            update_tokens=self._learner.tokens,
            real_tokens=self._real_tokens(),
            reflector_hash=frozen,
            seconds=time.monotonic() - began,
            play_seconds=self._play_seconds,
            generated_tokens=generated,
            resumed_at=resumed,
        )

    def _real_tokens(self) -> int:
        """Tokens that fine-tuning would process with the same compute; totals are over all processes."""
        return self._learner.tokens + int(self._totals["rollout_tokens"]) // 3

    def _spent(self) -> bool:
        """Whether the token budget is used up."""
        budget = self._params.max_train_tokens
        return budget is not None and self._real_tokens() >= budget

    def _iterate(self, iteration: int, runner: asyncio.Runner) -> dict[str, Any]:
        """Play, train on the episodes, train on the replay; returns a row of the log."""
        params, phase = self._params, phase_at(self._schedule, iteration)
        if phase != self._phase:
            self._phase = phase
            self._replay.clear()
        began = time.monotonic()
        played = runner.run(self._play(iteration, self._schedule[phase]))
        self._play_seconds += time.monotonic() - began
        episodes = [one.trajectory for one in played if one.trajectory is not None]
        self._replay.add(episodes)
        self._count(played)
        losses: list[float | None] = [None, None]
        if any(episode.decisions for episode in episodes):
            losses[0] = self._learner.train(episodes, iteration=iteration, fresh=True)
        again = self._replay.sample(params.replay_episodes, self._job.seed, iteration)
        if again:
            losses[1] = self._learner.train(again, iteration=iteration, fresh=False)
        critic_loss = self._learner.end_iteration()
        self._engine.forget_prefixes()
        steps = [step for episode in episodes for step in episode.decisions]
        return {
            "iter": iteration + 1,
            "level": self._schedule[phase].level,
            "loss": losses,
            "critic_loss": critic_loss,
            "cost": _mean([one.cost for one in played]),
            "succ": _mean([float(one.success) for one in played]),
            "entropy": _mean([step.entropy for step in steps]),
            "steps": len(steps),
            "log": [{"batch": index, "detail": one.detail} for index, one in enumerate(played) if one.detail],
        }

    async def _play(self, iteration: int, phase: Phase) -> list[_EpisodeSummary]:
        """The iteration's episodes in order, of which each process plays a share."""
        job, params = self._job, self._params
        first = (iteration - phase.start) * params.episodes
        batch = key_bits(job.seed, "rl", iteration)
        places = range(self._group.rank, params.episodes, self._group.world)
        reflector = None if self._reflector is None else self._reflector.engine

        async def one(place: int) -> RLEpisode:
            return await play(
                drawn(phase, first + place, job.seed), job.env, reflector, self._engine, params,
                SeedKey(batch, str(place)), phase.level, episode=iteration * params.episodes + place,
                markers=job.markers,
            )  # fmt: skip

        mine = await play_all(places, one, concurrency=len(places))
        told = [
            self._summary(episode, place < params.log_episodes) for place, episode in zip(places, mine, strict=True)
        ]
        shares = self._group.gather(told)
        return [shares[place % len(shares)][place // len(shares)] for place in range(params.episodes)]

    def _summary(self, episode: RLEpisode, tell: bool) -> _EpisodeSummary:
        if episode.status == "blocked":
            return _EpisodeSummary(None, episode.cost, False, 0, 0, 0, 0, [], f"{episode.id}: {episode.error}")
        path = trajectory(episode, self._ids, self._params.mask_invalid)
        read = sum(len(step.prompt_ids) * (2 if step.reflection else 1) for step in episode.steps)
        detail = details(episode, path.decisions, self._params.entropy_coef) if tell else []
        shortened, cut = (sum(getattr(step, what) for step in episode.steps) for what in ("shortened", "cut"))
        unlisted = sum(step.unlisted > 0 for step in episode.steps)
        return _EpisodeSummary(path, episode.cost, episode.success, read, shortened, cut, unlisted, detail)

    def _count(self, played: Sequence[_EpisodeSummary]) -> None:
        """Add an iteration's episodes to the totals. Raises: UserError: too many are blocked."""
        self._totals["episodes"] += len(played)
        self._totals["blocked"] += sum(one.trajectory is None for one in played)
        self._totals["decisions"] += sum(len(one.trajectory.decisions) for one in played if one.trajectory)
        self._totals["rollout_tokens"] += sum(one.read for one in played)
        self._totals["shortened_prompts"] += sum(one.shortened for one in played)
        self._totals["cut_completions"] += sum(one.cut for one in played)
        self._totals["unlisted_actions"] += sum(one.unlisted for one in played)
        self._first_error = self._first_error or next((one.error for one in played if one.error), "")
        self._check_blocked(self._params.max_steps * self._params.episodes)

    def _check_blocked(self, episodes: int) -> None:
        """Raise a ``UserError`` if too many of the run's ``episodes`` have been blocked."""
        blocked, most = self._totals["blocked"], self._job.max_blocked
        if blocked > most * episodes:
            raise UserError(
                f"{blocked} of the {self._totals['episodes']} episodes so far are blocked; the first of this run: "
                f"{self._first_error.rstrip('.')}. run.max_blocked allows a share of {most:g}; fix the cause and run "
                "again: it resumes from its newest checkpoint."
            )

    def _save_if_due(self, log: IO[bytes]) -> None:
        """Save every ``save_steps``, or sooner if the clock or a stop request demands it (all processes call it)."""
        if self._done == self._params.max_steps:
            return
        wish = max(self._group.gather(self._clock.wish(first=self._group.first)))
        if wish or self._done % self._params.save_steps == 0:
            log.flush()
            with self._clock.saving():
                self._save()
        if wish == END:
            self._group.gather(None)  # wait until the first process has written everything
            raise KeyboardInterrupt

    def _save(self) -> None:
        """Write a checkpoint atomically, including the log so far (all processes call it)."""
        folder = self._job.checkpoints / f"checkpoint-{self._done}"
        if self._group.first:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        rest = self._learner.save(folder)
        if not self._group.first:
            return
        waiting = [[asdict(episode), fresh] for episode, fresh in rest.pop("waiting")]
        state = {
            "done": self._done,
            "phase": self._phase,
            "totals": self._totals,
            "replay": [asdict(episode) for episode in self._replay.kept],
            "learner": {**rest, "waiting": waiting},
        }
        (folder / STATE).write_text(json.dumps(state), encoding="utf-8")
        shutil.copyfile(self._job.log, folder / LOG)
        seal(folder)
        keep_newest(self._job.checkpoints, self._params.save_total_limit)

    def _resume(self) -> int:
        """Load the newest complete checkpoint; returns its number of iterations."""
        checkpoint = newest_whole(self._job.checkpoints)
        log = self._job.log
        self._group.gather(None)  # all have looked before the first process writes
        if checkpoint is None:
            if self._group.first:
                log.unlink(missing_ok=True)
            return 0
        state = json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
        if self._group.first:
            shutil.copyfile(checkpoint / LOG, log)
        rest = state["learner"]
        rest["waiting"] = [(_read(episode), fresh) for episode, fresh in rest["waiting"]]
        self._learner.load(checkpoint, rest)
        self._replay = Replay(self._params.replay_buffer, map(_read, state["replay"]))
        self._done, self._phase, self._totals = state["done"], state["phase"], self._totals | state["totals"]
        return self._done


@dataclass(frozen=True, slots=True)
class _EpisodeSummary:
    """Summary of an episode that is sent to all processes. ``trajectory`` is None if it was blocked."""

    trajectory: RLTrajectory | None
    cost: float
    success: bool
    read: int
    shortened: int
    cut: int
    unlisted: int
    detail: list[dict[str, Any]]
    error: str = ""


def _read(row: dict[str, Any]) -> RLTrajectory:
    return RLTrajectory(row["id"], row["success"], [Decision(**step) for step in row["decisions"]])


def _mean(values: Sequence[float]) -> float:
    return float_sum(values) / max(1, len(values))
