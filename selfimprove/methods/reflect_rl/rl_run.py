"""One process's part of a run of reinforcement learning: in each iteration it plays, learns and replays.

``rl_models`` loads what a process needs; ``rl_checkpoints`` saves and resumes.
"""

import asyncio
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from selfimprove.core.errors import UserError
from selfimprove.core.seeds import SeedKey, key_bits
from selfimprove.core.sums import float_sum
from selfimprove.engines.episodes import play_all
from selfimprove.methods.reflect_rl.curriculum import Phase, drawn, phase_at, phases
from selfimprove.methods.reflect_rl.episode import RLEpisode
from selfimprove.methods.reflect_rl.rl_checkpoints import Checkpoints, RunState
from selfimprove.methods.reflect_rl.rl_group import Group
from selfimprove.methods.reflect_rl.rl_job import RLJob, RLReport
from selfimprove.methods.reflect_rl.rl_learner import Learner
from selfimprove.methods.reflect_rl.rl_models import load_models
from selfimprove.methods.reflect_rl.rl_objective import RLTrajectory
from selfimprove.methods.reflect_rl.rl_replay import Replay
from selfimprove.methods.reflect_rl.rl_totals import EpisodeSummary, summary_of
from selfimprove.methods.reflect_rl.rollout import play
from selfimprove.training.progress import Progress
from selfimprove.training.stopping import signals_ask


class Run:
    """One process's part of a run."""

    def __init__(self, job: RLJob, threads: int, progress: Progress | None) -> None:
        self._job, self._params, self._progress = job, job.params, progress
        self._group = Group()
        self._models = load_models(job, threads, self._group.world)
        self._learner = Learner(
            self._models.policy, job.params, self._group, job.seed, critic_body=self._models.critic_body
        )
        self._schedule = phases(job.env, job.tasks, job.params.max_steps, curriculum=job.params.curriculum)
        self._state = RunState(Replay(job.params.replay_buffer))
        self._play_seconds = 0.0
        self._first_error = ""

    def go(self) -> RLReport:
        """Run all iterations from the newest complete checkpoint on, write the model and return the report."""
        with asyncio.Runner() as runner:  # one event loop for all iterations, since engines keep connections in it
            try:
                return self._go(runner)
            finally:
                if self._models.reflector is not None:
                    runner.run(self._models.reflector.engine.close())

    def _go(self, runner: asyncio.Runner) -> RLReport:
        began = time.monotonic()
        reflector, checkpoints = self._models.reflector, Checkpoints(self._job, self._group, self._learner)
        frozen = None if reflector is None else reflector.weights()
        state = self._state = checkpoints.resume()
        resumed = state.done
        with signals_ask(), self._job.log.open("ab") if self._group.first else open(os.devnull, "ab") as log:
            while state.done < self._params.max_steps and not self._spent():
                row = self._iterate(state.done, runner)
                state.done += 1
                if self._group.first:
                    log.write(json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n")
                checkpoints.save_if_due(state, log)
                if self._progress is not None and self._group.first:
                    self._progress(state.done, self._params.max_steps, f"success {row['succ']:.2f}", _metrics(row))
        self._check_blocked(state.totals.episodes)  # the token budget may have ended the run early
        if reflector is not None and reflector.weights() != frozen:
            raise RuntimeError("the frozen reflection model has changed during reinforcement learning")
        self._learner.check_weights()
        if self._group.first:
            self._models.policy.write(self._job.out_dir, self._job.checkpoints)
        engines = [self._models.engine, *([] if reflector is None else [reflector.engine])]
        generated = sum(self._group.gather(sum(engine.stats.generated_tokens for engine in engines)))
        return RLReport(
            iterations=state.done,
            **asdict(state.totals),
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
        return self._learner.tokens + self._state.totals.rollout_tokens // 3

    def _spent(self) -> bool:
        """Whether the token budget is used up."""
        budget = self._params.max_train_tokens
        return budget is not None and self._real_tokens() >= budget

    def _iterate(self, iteration: int, runner: asyncio.Runner) -> dict[str, Any]:
        """Play, train on the episodes, train on the replay; returns a row of the log."""
        params, state, phase = self._params, self._state, phase_at(self._schedule, iteration)
        if phase != state.phase:
            state.phase = phase
            state.replay.clear()
        began = time.monotonic()
        played = runner.run(self._play(iteration, self._schedule[phase]))
        self._play_seconds += time.monotonic() - began
        episodes = [one.trajectory for one in played if one.trajectory is not None]
        state.replay.add(episodes)
        self._count(played)
        replayed = state.replay.sample(params.replay_episodes, self._job.seed, iteration)
        losses = [self._learn(episodes, iteration, fresh=True), self._learn(replayed, iteration, fresh=False)]
        critic_loss = self._learner.end_iteration()
        self._models.engine.forget_prefixes()
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

    async def _play(self, iteration: int, phase: Phase) -> list[EpisodeSummary]:
        """The iteration's episodes in order, of which each process plays a share."""
        job, params, models = self._job, self._params, self._models
        first = (iteration - phase.start) * params.episodes
        batch = key_bits(job.seed, "rl", iteration)
        places = range(self._group.rank, params.episodes, self._group.world)
        reflector = None if models.reflector is None else models.reflector.engine

        async def one(place: int) -> RLEpisode:
            return await play(
                drawn(phase, first + place, job.seed), job.env, reflector, models.engine, params,
                SeedKey(batch, str(place)), phase.level, episode=iteration * params.episodes + place,
                markers=job.markers,
            )  # fmt: skip

        mine = await play_all(places, one, concurrency=len(places))
        told = [
            summary_of(episode, models.ids, params, tell=place < params.log_episodes)
            for place, episode in zip(places, mine, strict=True)
        ]
        shares = self._group.gather(told)
        return [shares[place % len(shares)][place // len(shares)] for place in range(params.episodes)]

    def _learn(self, episodes: Sequence[RLTrajectory], iteration: int, *, fresh: bool) -> float | None:
        """Train on episodes; returns the loss, or None if there was no decision or no update."""
        if not any(episode.decisions for episode in episodes):
            return None
        return self._learner.train(episodes, iteration=iteration, fresh=fresh)

    def _count(self, played: Sequence[EpisodeSummary]) -> None:
        """Add an iteration's episodes to the totals. Raises: UserError: too many are blocked."""
        self._state.totals.add(played)
        self._first_error = self._first_error or next((one.error for one in played if one.error), "")
        self._check_blocked(self._params.max_steps * self._params.episodes)

    def _check_blocked(self, episodes: int) -> None:
        """Raise a ``UserError`` if too many of the run's ``episodes`` have been blocked."""
        totals, most = self._state.totals, self._job.max_blocked
        if totals.blocked > most * episodes:
            raise UserError(
                f"{totals.blocked} of the {totals.episodes} episodes so far are blocked; the first of this run: "
                f"{self._first_error.rstrip('.')}. run.max_blocked allows a share of {most:g}; fix the cause and run "
                "again: it resumes from its newest checkpoint."
            )


def _metrics(row: dict[str, Any]) -> dict[str, float]:
    """The metrics of a log row, for the progress curves."""
    fresh, replayed = row["loss"]
    values = {"success": row["succ"], "cost": row["cost"], "entropy": row["entropy"]}
    values |= {"loss": fresh, "replay_loss": replayed, "critic_loss": row["critic_loss"], "decisions": row["steps"]}
    return {name: float(value) for name, value in values.items() if value is not None}


def _mean(values: Sequence[float]) -> float:
    return float_sum(values) / max(1, len(values))
