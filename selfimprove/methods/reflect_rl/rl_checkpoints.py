"""Checkpoints of a run of reinforcement learning, from which it resumes exactly (docs/reflect-rl.md, L23).

All processes call every method; the first one writes.
"""

import json
import shutil
from dataclasses import asdict, dataclass, field
from typing import IO, Any

from selfimprove.methods.reflect_rl.rl_group import Group
from selfimprove.methods.reflect_rl.rl_job import LOG, RLJob
from selfimprove.methods.reflect_rl.rl_learner import Learner
from selfimprove.methods.reflect_rl.rl_objective import Decision, RLTrajectory
from selfimprove.methods.reflect_rl.rl_replay import Replay
from selfimprove.methods.reflect_rl.rl_totals import Totals
from selfimprove.training.checkpoints import keep_newest, newest_whole, seal
from selfimprove.training.stopping import END, SaveClock

STATE = "state.json"


@dataclass
class RunState:
    """What a run carries from one iteration to the next besides the learner; the same in all processes.

    ``done``: number of iterations; ``phase``: index of the curriculum's phase, whose successes ``replay`` contains.
    """

    replay: Replay
    done: int = 0
    phase: int = 0
    totals: Totals = field(default_factory=Totals)


class Checkpoints:
    """Saves a run every ``save_steps``, or sooner if the clock or a stop request demands it."""

    def __init__(self, job: RLJob, group: Group, learner: Learner) -> None:
        self._job, self._group, self._learner = job, group, learner
        self._clock = SaveClock()

    def save_if_due(self, state: RunState, log: IO[bytes]) -> None:
        """Save after an iteration. Raises: KeyboardInterrupt: a stop was requested; the run is saved."""
        if state.done == self._job.params.max_steps:
            return
        wish = max(self._group.gather(self._clock.wish(first=self._group.first)))
        if wish or state.done % self._job.params.save_steps == 0:
            log.flush()
            with self._clock.saving():
                self._save(state)
        if wish == END:
            self._group.gather(None)  # wait until the first process has written everything
            raise KeyboardInterrupt

    def _save(self, state: RunState) -> None:
        """Write a checkpoint atomically, including the log so far."""
        folder = self._job.checkpoints / f"checkpoint-{state.done}"
        if self._group.first:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        rest = self._learner.save(folder)
        if not self._group.first:
            return
        waiting = [[asdict(episode), fresh] for episode, fresh in rest.pop("waiting")]
        saved = {
            "done": state.done,
            "phase": state.phase,
            "totals": asdict(state.totals),
            "replay": [asdict(episode) for episode in state.replay.kept],
            "learner": {**rest, "waiting": waiting},
        }
        (folder / STATE).write_text(json.dumps(saved), encoding="utf-8")
        shutil.copyfile(self._job.log, folder / LOG)
        seal(folder)
        keep_newest(self._job.checkpoints, self._job.params.save_total_limit)

    def resume(self) -> RunState:
        """The state of the newest complete checkpoint, whose learner and log are restored, or that of a new run."""
        checkpoint = newest_whole(self._job.checkpoints)
        self._group.gather(None)  # all have looked before the first process writes
        if checkpoint is None:
            if self._group.first:
                self._job.log.unlink(missing_ok=True)
            return RunState(Replay(self._job.params.replay_buffer))
        saved = json.loads((checkpoint / STATE).read_text(encoding="utf-8"))
        if self._group.first:
            shutil.copyfile(checkpoint / LOG, self._job.log)
        rest = saved["learner"]
        rest["waiting"] = [(_read(episode), fresh) for episode, fresh in rest["waiting"]]
        self._learner.load(checkpoint, rest)
        replay = Replay(self._job.params.replay_buffer, map(_read, saved["replay"]))
        return RunState(replay, saved["done"], saved["phase"], Totals(**saved["totals"]))


def _read(row: dict[str, Any]) -> RLTrajectory:
    return RLTrajectory(row["id"], row["success"], [Decision(**step) for step in row["decisions"]])
