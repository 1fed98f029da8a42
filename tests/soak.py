"""``make soak MINUTES=10``: random kills, damaged files and a faulty endpoint for the stages of all four methods.

Not part of ``make test``: its duration is an option, and the attacks depend on the seed. Each round runs one stage of
the smoke profile, kills it with SIGKILL at random moments, damages files in its scratch folder in between (journals,
checkpoints, manifests, locks), and then runs it to the end. The published bytes must equal those of an uninterrupted
run. Meanwhile the stage may refuse to run with one sentence (exit code 2), but never with a traceback and never
permanently.

In about a third of its rounds, a stage that can use an endpoint gets one that fails 30 % of the calls and runs out of
quota half-way. The stage must refuse, and resume once there is quota again. No answer may be paid for twice, except
those that were in flight when the stage was killed.

    python -m tests.soak --minutes 10 --seed 1
"""

from __future__ import annotations

import json
import random
import shutil
import signal
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal
from zlib import crc32

import typer

from selfimprove.core import cli
from selfimprove.methods.reflect_rl.teacher import CHOOSE
from selfimprove.training.xtuner.backend import ENVIRONMENT
from tests.engines.http_endpoint import Reply, Seen, answer, endpoint
from tests.pipeline.workbench import ROOT, Forks, Place, Ran, Workbench, copy_code, published

STAGES: dict[str, list[Place]] = {
    "rise": [
        ("rise.generate", "iter1"), ("rise.convert", "iter1"), ("rise.finetune", "base"), ("rise.finetune", "iter1"),
        ("rise.evaluate", "base"),
    ],
    "agent_r": [("agent_r.generate", "iter1"), ("agent_r.convert", "iter2"), ("agent_r.finetune", "base")],
    "reflect_rl": [
        ("reflect_rl.generate", ""), ("reflect_rl.convert", ""), ("reflect_rl.finetune", "policy"),
        ("reflect_rl.reinforce", "reflect_rl"),
    ],
    "spin": [("spin.generate", "iter0"), ("spin.convert", "iter0"), ("spin.finetune", "iter0")],
}  # fmt: skip
"""All training stages, and the stages that generate and convert."""

BEFORE: dict[str, list[Place]] = {"rise": [("rise.generate", "iter1"), ("rise.convert", "iter1")]}
"""Stages to run in addition to the method's first stages (``Workbench``)."""

OVERLAYS: dict[str, dict[str, Any]] = {
    "spin": {"tokenizer": {"spin": {"template": "plain"}}, "spin": {"prompt": {"format": "chat"}}},
}
"""Params that differ from the workbench's: SPIN plays in chat turns, which an endpoint also supports."""

ASKING: dict[Place, str] = {
    ("rise.generate", "iter1"): "teacher",
    ("agent_r.generate", "iter1"): "actor",
    ("agent_r.convert", "iter2"): "actor",
    ("reflect_rl.generate", ""): "teacher",
    ("spin.generate", "iter0"): "policy",
}
"""The stages' engines that an endpoint can replace."""

TRAINING: dict[Place, tuple[str, ...]] = {
    ("rise.finetune", "base"): ("rows", "base", "train"),
    ("rise.finetune", "iter1"): ("rows", "iter1", "train"),
    ("agent_r.finetune", "base"): ("rows", "base", "train"),
    ("reflect_rl.finetune", "policy"): ("models", "policy", "train"),
    ("reflect_rl.reinforce", "reflect_rl"): ("iterations", "reflect_rl", "rl"),
    ("spin.finetune", "iter0"): ("rows", "iter0", "train"),
}
"""Path of each trainer's params; in about half of its rounds it trains in one of the ways in ``LAUNCHED``."""

Way = Literal["plain", "endpoint", "fork", "torchrun", "deepspeed", "xtuner"]
"""How a stage is run: with the workbench's params, with an endpoint as its engine, or as in ``LAUNCHED``."""

LAUNCHED: dict[Way, dict[str, Any]] = {
    "fork": {"launcher": {"kind": "fork", "processes": 2}},
    "torchrun": {"launcher": {"kind": "torchrun", "processes": 2}},
    "deepspeed": {"launcher": {"kind": "deepspeed", "processes": 2, "zero_stage": 2}},
    "xtuner": {"backend": "xtuner", "attention": "sdpa"},
}
"""Two processes as forks, with torchrun, or with DeepSpeed's ZeRO; XTuner, for Agent-R only."""

MOST_KILLS = 3
FAULTS = 0.3
"""Share of an endpoint's calls that fail."""

IN_FLIGHT = 12
"""Maximum number of concurrent calls of a stage of this size: its episodes or trees."""

RERUNS = 3
"""A stage that still refuses after this many runs could only be repaired by hand, which is a failure."""


@dataclass
class Whole:
    """An uninterrupted run: all published files, the stage's own outputs, its duration, and the calls it paid for."""

    files: dict[str, bytes]
    outputs: list[str]
    seconds: float
    calls: Counter[str]


class Teacher:
    """The endpoint's answers: the same for the same call; while ``faulty``, also errors and an exhausted quota.

    Attributes:
        paid: answered calls, counted by content.
        quota: number of answers left while it is faulty.
    """

    def __init__(self, seed: int) -> None:
        self.paid = Counter[str]()
        self.faulty, self.quota = False, 0
        self._dice = random.Random(seed)

    def __call__(self, seen: Seen) -> Reply:
        if self.faulty and self._dice.random() < FAULTS:
            return self._dice.choice([Reply(500, b"no"), Reply(429, b"slow down"), Reply(200, b"torn {")])
        if self.faulty and self.quota <= 0:
            return Reply(429, b'{"error": {"code": "insufficient_quota", "message": "pay"}}')
        self.quota -= 1
        self.paid[json.dumps(seen.body, sort_keys=True)] += 1
        asked = str(seen.body["messages"][-1]["content"])
        if asked.rpartition("Question: ")[1]:
            return answer(f"Thought: So.\nAction: finish[{crc32(asked.encode()) % 6}]")
        if asked.endswith(CHOOSE):
            return answer(str(crc32(asked.encode()) % 6))
        return answer(*(f"Action: turn {(crc32(asked.encode()) + i) % 6}" for i in range(seen.body.get("n", 1))))


class Soak:
    """Runs the rounds and counts events.

    Attributes:
        counts: rounds (in total, by stage and by way), kills, damaged files, and refusals (exit code 2).
        failures: a sentence for each violation; the folder of such a round is kept.
    """

    def __init__(self, home: Path, seed: int, stack: ExitStack) -> None:
        self._home, self._dice = home, random.Random(seed)
        code = copy_code(home / "code")  # workbenches are copied from here, as the working tree may change
        if (ROOT / ENVIRONMENT).exists():
            (code / ENVIRONMENT).parent.mkdir()
            (code / ENVIRONMENT).symlink_to(ROOT / ENVIRONMENT)
        self._forks = stack.enter_context(Forks(code))
        self._teacher = Teacher(seed)
        self._endpoint = stack.enter_context(endpoint(then=self._teacher))
        self._benches: dict[str, Workbench] = {}
        self._wholes: dict[tuple[Place, Way], Whole] = {}
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []

    def round(self) -> None:
        """Attack one stage."""
        place = self._dice.choice([place for places in STAGES.values() for place in places])
        self.counts["rounds"] += 1
        self.counts[" ".join(place).strip()] += 1
        folder = self._home / f"round-{self.counts['rounds']}"
        way: Way = "plain"
        if place in ASKING and self._dice.random() < 1 / 3:
            way = "endpoint"
        elif place in TRAINING and self._dice.random() < 1 / 2:
            way = self._dice.choice(self._launched(place))
        self.counts[f"{way} rounds"] += 1
        whole = self._whole(place, way)
        self._prepare(folder, place, way)
        for path in whole.outputs:  # as DVC does before it runs a stage
            target = folder / path
            shutil.rmtree(target) if target.is_dir() else target.unlink(missing_ok=True)
        if way == "endpoint":
            self._with_faults(place, folder, whole)
        else:
            self._with_kills(place, folder, whole)
        if not any(str(folder) in failure for failure in self.failures):
            shutil.rmtree(folder)

    def _launched(self, place: Place) -> list[Way]:
        """Ways to launch a trainer on this machine; XTuner only for Agent-R, and only after ``make env-xtuner``."""
        if place[0] == "reflect_rl.reinforce":  # trains with forks or in the stage's own process
            return ["fork"]
        xtuner = place[0] == "agent_r.finetune" and (self._home / "code" / ENVIRONMENT).exists()
        return [*LAUNCHED] if xtuner else [way for way in LAUNCHED if way != "xtuner"]

    def _bench(self, method: str) -> Workbench:
        if method not in self._benches:
            folder = self._home / method
            shutil.copytree(self._home / "code", folder, ignore=shutil.ignore_patterns("__pycache__"))
            self._benches[method] = Workbench(folder, self._forks, method, OVERLAYS.get(method))
            for place in BEFORE.get(method, ()):
                ran = self._forks.run(folder, *place)
                assert ran.code == 0, ran.stderr
        return self._benches[method]

    def _prepare(self, folder: Path, place: Place, way: Way) -> Path:
        method = place[0].partition(".")[0]
        overlay: dict[str, Any] = {}
        if way == "endpoint":
            overlay = {
                "engine": "openai", "model": "m", "tries": 8, "backoff": 0.01, "timeout": 10.0,
                "base_url": self._endpoint.url, "api_key_env": None,
            }  # fmt: skip
            overlay = {method: {"engines": {ASKING[place]: overlay}}}
        if way in LAUNCHED:
            overlay = LAUNCHED[way]
            for key in (*reversed(TRAINING[place]), method):
                overlay = {key: overlay}
        return self._bench(method).copy(folder, overlay)

    def _whole(self, place: Place, way: Way) -> Whole:
        if (place, way) not in self._wholes:
            folder = self._prepare(self._home / f"unbroken-{place[0]}-{place[1]}-{way}", place, way)
            self._teacher.paid.clear()
            self._teacher.faulty = False
            began = time.monotonic()
            ran = self._forks.run(folder, *place)
            assert ran.code == 0, ran.stderr
            seconds = time.monotonic() - began
            (record,) = folder.glob(".scratch/stages/*/*/done/manifest.json")
            outputs = list(json.loads(record.read_text()))
            self._wholes[place, way] = Whole(published(folder), outputs, seconds, Counter(self._teacher.paid))
            assert self._teacher.paid or way != "endpoint"
        return self._wholes[place, way]

    def _with_kills(self, place: Place, folder: Path, whole: Whole) -> None:
        for _ in range(self._dice.randint(1, MOST_KILLS)):
            ran = self._killed(place, folder, whole)
            if self._dice.random() < 0.5:
                self._damage(folder)
            if not self._decent(ran, folder, place):
                return
        self._ends_with(whole, folder, place)

    def _killed(self, place: Place, folder: Path, whole: Whole) -> Ran:
        """Run the stage and kill it at a random time, which may be shortly after its end."""
        ran = self._forks.run(folder, *place, kill={"after": self._dice.uniform(0.01, 1.1 * whole.seconds)})
        self.counts["kills"] += ran.signal == signal.SIGKILL
        return ran

    def _damage(self, folder: Path) -> None:
        """Damage one random file in the scratch folder."""
        files = sorted(path for path in (folder / ".scratch").rglob("*") if path.is_file() and path.stat().st_size)
        if not files:
            return
        file = self._dice.choice(files)
        content = bytearray(file.read_bytes())
        place = self._dice.randrange(len(content))
        match self._dice.choice(["flip", "cut", "zero", "empty"]):
            case "flip":
                content[place] ^= 1 << self._dice.randrange(8)
            case "cut":
                del content[place:]
            case "zero":
                content[place:] = bytes(len(content) - place)
            case "empty":
                content.clear()
        file.unlink()  # it may be a hard link to a published file, which must stay intact
        file.write_bytes(content)
        self.counts["damages"] += 1

    def _with_faults(self, place: Place, folder: Path, whole: Whole) -> None:
        """Run with an endpoint that fails, runs out of quota half-way and recovers; half of the time with a kill."""
        teacher, kills = self._teacher, self.counts["kills"]
        teacher.paid.clear()
        teacher.faulty, teacher.quota = True, whole.calls.total() // 2
        ran = self._killed(place, folder, whole) if self._dice.random() < 0.5 else None
        if ran is not None and not self._decent(ran, folder, place):
            return
        ran = self._forks.run(folder, *place)
        if not self._decent(ran, folder, place):
            return
        if ran.code == 0:
            self.failures.append(f"{folder}: {' '.join(place)} succeeded with half of the answers.")
            return
        teacher.faulty = False
        self._ends_with(whole, folder, place)
        twice = (teacher.paid - whole.calls).total()
        if twice > (self.counts["kills"] - kills) * IN_FLIGHT:
            self.failures.append(f"{folder}: {twice} calls were paid for twice.")

    def _decent(self, ran: Ran, folder: Path, place: Place) -> bool:
        """Whether a run succeeded, was killed by us, or refused without a traceback; if not, record a failure."""
        self.counts["refusals"] += ran.code == 2
        if ran.signal == signal.SIGKILL or ran.code == 0 or (ran.code == 2 and "Traceback" not in ran.stderr):
            return True
        self.failures.append(f"{folder}: {' '.join(place)} ended with {ran.code or ran.signal}: {ran.stderr[-500:]}")
        return False

    def _ends_with(self, whole: Whole, folder: Path, place: Place) -> None:
        """Run to the end; the bytes must equal those of the uninterrupted run."""
        for _ in range(RERUNS):
            ran = self._forks.run(folder, *place)
            if not self._decent(ran, folder, place):
                return
            if ran.code == 0:
                break
        else:
            self.failures.append(f"{folder}: {' '.join(place)} is refused for good: {ran.stderr[-500:]}")
            return
        if (found := published(folder)) != whole.files:
            other = sorted(path for path in {*found, *whole.files} if found.get(path) != whole.files.get(path))
            self.failures.append(f"{folder}: {' '.join(place)} published other bytes: {', '.join(other)}")


app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    minutes: Annotated[
        float, typer.Option(min=0, help="duration in minutes; the round in progress is completed")
    ] = 10.0,
    seed: Annotated[int, typer.Option(help="seed of the random attacks")] = 1,
) -> None:
    """Attack stages until the time is up; print failures and counts, and exit with code 1 on any failure."""
    home = Path(tempfile.mkdtemp(prefix="soak-"))
    with ExitStack() as stack:
        soak = Soak(home, seed, stack)
        until = time.monotonic() + 60 * minutes
        while time.monotonic() < until:
            soak.round()
    print("\n".join(soak.failures))
    print(json.dumps({"seed": seed, **soak.counts, "failures": len(soak.failures)}))
    if soak.failures:
        raise typer.Exit(1)
    shutil.rmtree(home)


if __name__ == "__main__":
    cli.run(app)
