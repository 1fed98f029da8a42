"""``make soak MINUTES=10``: random kills, damage and a faulty endpoint over the stages of all four methods.

Not a test of ``make test``: it runs as long as it is told to, and with another seed it does something else. A round
takes one stage of the smoke profile, kills it with SIGKILL at random moments, damages files of its scratch folder in
between (journals, checkpoints, manifests, locks), and runs it to its end. It must then have published the bytes of an
unbroken run. On the way it may refuse with one sentence (exit code 2), never with a traceback, and never for good.
Every third round of RISE's collection has an endpoint for a teacher that fails, or runs out of quota, instead.

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
from pathlib import Path
from typing import Annotated, Any

import typer

from tests.engines.http_endpoint import Reply, Seen, echo, endpoint
from tests.pipeline.workbench import Forks, Place, Ran, Workbench, copy_code, published

STAGES: dict[str, list[Place]] = {
    "rise": [("rise.generate", "iter1"), ("rise.finetune", "base"), ("rise.evaluate", "base")],
    "agent_r": [("agent_r.generate", "iter1"), ("agent_r.convert", "iter2"), ("agent_r.finetune", "base")],
    "reflect_rl": [("reflect_rl.generate", ""), ("reflect_rl.sft", "policy"), ("reflect_rl.finetune", "reflect_rl")],
    "spin": [("spin.generate", "iter0"), ("spin.convert", "iter0"), ("spin.finetune", "iter0")],
}
"""Each runs on what the method's first stages have left (``Workbench``)."""

MOST_KILLS = 3
FAULTS = 0.3
"""Share of an endpoint's calls that fail."""

RERUNS = 3
"""A stage that is still refused after so many runs could only be repaired by hand."""


class Soak:
    """The rounds, and what they counted.

    Attributes:
        counts: rounds, kills, damages, refusals (exit code 2 with one sentence).
        failures: a sentence a round that ended as it must not; its folder is kept.
    """

    def __init__(self, home: Path, seed: int, stack: ExitStack) -> None:
        self._home, self._dice = home, random.Random(seed)
        self._forks = stack.enter_context(Forks(copy_code(home / "code")))
        self._benches: dict[str, Workbench] = {}
        self._unbroken: dict[Place, tuple[dict[str, bytes], float]] = {}
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []

    def round(self) -> None:
        """One stage, attacked."""
        method = self._dice.choice(list(STAGES))
        place = self._dice.choice(STAGES[method])
        self.counts["rounds"] += 1
        folder = self._home / f"round-{self.counts['rounds']}"
        if place[0] == "rise.generate" and self._dice.random() < 1 / 3:
            self._with_endpoint(folder)
        else:
            self._with_kills(method, place, folder)
        if not any(str(folder) in failure for failure in self.failures):
            shutil.rmtree(folder)

    def _bench(self, method: str) -> Workbench:
        if method not in self._benches:
            self._benches[method] = Workbench(copy_code(self._home / method), self._forks, method)
        return self._benches[method]

    def _with_kills(self, method: str, place: Place, folder: Path) -> None:
        bench = self._bench(method)
        if place not in self._unbroken:
            whole = bench.copy(self._home / f"unbroken-{place[0]}-{place[1]}")
            began = time.monotonic()
            ran = self._forks.run(whole, *place)
            assert ran.code == 0, ran.stderr
            self._unbroken[place] = published(whole), time.monotonic() - began
        wanted, seconds = self._unbroken[place]
        bench.copy(folder)
        for _ in range(self._dice.randint(1, MOST_KILLS)):
            after = self._dice.uniform(0.01, 1.1 * seconds)
            ran = self._forks.run(folder, *place, kill={"after": after})
            self.counts["kills"] += ran.signal == signal.SIGKILL
            if self._dice.random() < 0.5:
                self._damage(folder)
            if not self._decent(ran, folder, place):
                return
        self._ends_with(wanted, folder, place)

    def _damage(self, folder: Path) -> None:
        """Spoil one file of the scratch folder."""
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
        file.unlink()  # a second name of a published file is not what is attacked
        file.write_bytes(content)
        self.counts["damages"] += 1

    def _with_endpoint(self, folder: Path) -> None:
        """RISE's collection with a teacher that fails, runs out of quota half-way, and is well again."""
        bench, well, answered = self._bench("rise"), False, Counter[str]()
        dice = random.Random(self._dice.random())

        def teacher(seen: Seen) -> Reply:
            if not well and dice.random() < FAULTS:
                return dice.choice([Reply(500, b"no"), Reply(429, b"slow down"), Reply(200, b"torn {")])
            if not well and len(answered) >= 2:
                return Reply(429, b'{"error": {"code": "insufficient_quota", "message": "pay"}}')
            answered[json.dumps(seen.body, sort_keys=True)] += 1
            return echo(seen)

        with endpoint(then=teacher) as server:
            told: dict[str, Any] = {"engine": "openai", "model": "m", "tries": 8, "backoff": 0.01, "timeout": 10.0}
            bench.copy(folder, {"rise": {"engines": {"teacher": told | {"base_url": server.url, "api_key_env": None}}}})
            place = ("rise.generate", "iter1")
            if not self._decent(self._forks.run(folder, *place), folder, place):
                return
            well = True
            self._ends_with(None, folder, place)
        if twice := sum(answered.values()) - len(answered):
            self.failures.append(f"{folder}: {twice} calls were paid for twice.")

    def _decent(self, ran: Ran, folder: Path, place: Place) -> bool:
        """Whether a run ended well, by our signal, or with one sentence; else it is noted."""
        self.counts["refusals"] += ran.code == 2
        if ran.signal == signal.SIGKILL or ran.code == 0 or (ran.code == 2 and "Traceback" not in ran.stderr):
            return True
        self.failures.append(f"{folder}: {' '.join(place)} ended with {ran.code or ran.signal}: {ran.stderr[-500:]}")
        return False

    def _ends_with(self, wanted: dict[str, bytes] | None, folder: Path, place: Place) -> None:
        """Run to the end; the bytes must be those ``wanted`` (None: any)."""
        for _ in range(RERUNS):
            ran = self._forks.run(folder, *place)
            if not self._decent(ran, folder, place):
                return
            if ran.code == 0:
                break
        else:
            self.failures.append(f"{folder}: {' '.join(place)} is refused for good: {ran.stderr[-500:]}")
            return
        if wanted is not None and (found := published(folder)) != wanted:
            other = sorted(path for path in {*found, *wanted} if found.get(path) != wanted.get(path))
            self.failures.append(f"{folder}: {' '.join(place)} published other bytes: {', '.join(other)}")


def main(
    minutes: Annotated[float, typer.Option(min=0, help="how long; a round that has begun is finished")] = 10.0,
    seed: Annotated[int, typer.Option(help="of the attacks")] = 1,
) -> None:
    """Attack until the time is over; print what was done, and exit with 1 if anything went wrong."""
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
    typer.run(main)
