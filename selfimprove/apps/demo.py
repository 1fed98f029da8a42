"""``make demo``: Reflect-RL on a small taxi game, end to end, in a minute on two idle cores.

A tiny model learns the game from a scripted teacher and then by reinforcement. The run has its own folder
(``.rehearsal/demo``), so it changes neither params.yaml nor any of the user's results. It ends with the table and a
chart of it, ``report/demo.png``.
"""

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from selfimprove.core.cli import one_sentence
from selfimprove.core.publish import aside
from selfimprove.pipeline.lock import alone
from selfimprove.pipeline.profiles import compose
from selfimprove.pipeline.rehearsal.folder import HOME, lay_out, write_if_changed
from selfimprove.pipeline.rehearsal.run import repro

PROFILE = "demo"
METHOD = "reflect_rl"
PICTURE = Path("report/demo.png")
STORY = """
policy       learned from a scripted teacher, by 30 complete rides
             and by the right actions in 800 exploring ones
reflect_rl   the same policy after reinforcement learning, advised by a frozen reflection model
chance, oracle: a random and a perfect player"""


def demo(root: Path, profile: str = PROFILE) -> int:
    """Run the demo in its own folder below ``root``; returns the exit code of the run.

    Raises:
        UserError: another demo is running.
    """
    folder = root / HOME / PROFILE
    with alone(folder / "lock", f"another `make demo` is running in {folder}; wait for it, or stop it."):
        return _demo(root, folder, profile)


def _demo(root: Path, folder: Path, profile: str) -> int:
    began = time.monotonic()
    lay_out(folder, root)
    write_if_changed(folder / "params.yaml", compose(profile, root / "profiles"))
    print("demo: Reflect-RL on DangerousTaxi, about a minute on two idle cores", flush=True)
    code = repro(folder, [f"{METHOD}-report"], os.environ)
    if code:
        return code
    table = [sys.executable, "-m", "selfimprove.apps.report.table", METHOD]
    shown = subprocess.run(table, cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout
    print(shown.rpartition("plots: ")[0].rstrip(), STORY, sep="\n")
    with aside(root / PICTURE) as part:
        part.write_bytes((folder / "report" / f"{METHOD}-rows.png").read_bytes())
    print(f"\n{time.monotonic() - began:.0f} s; plot: {PICTURE}; next: make play ENV=taxi, or make repro")
    return 0


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    with one_sentence():
        sys.exit(demo(Path.cwd()))
