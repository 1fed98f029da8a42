"""Runs code with ALFWorld's own package in its environment, and an episode as the package itself plays it."""

from __future__ import annotations

import os
import subprocess

from selfimprove.envs.alfworld.process import PYTHON


def in_alfworld(code: str, *arguments: str, stdin: str = "") -> str:
    """Run code with the package, which creates a data folder at ``ALFWORLD_DATA``."""
    done = subprocess.run(
        [str(PYTHON), "-c", code, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        env={**os.environ, "ALFWORLD_DATA": "/tmp", "PYTHONHASHSEED": "0"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


THEIRS = """
import json, sys
from importlib.util import find_spec
from pathlib import Path
import textworld
from textworld.envs.pddl import PddlEnv
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
data = Path(find_spec("alfworld").origin).parent / "data"
given = json.load(sys.stdin)
grammar = (data / "alfred.twl2").read_text().replace("UNKNOWN GOAL", given["goal"])
env = AlfredDemangler(PddlEnv(textworld.EnvInfos(admissible_commands=True)))
env.load({"pddl_domain": (data / "alfred.pddl").read_text(), "grammar": grammar, "pddl_problem": given["problem"]})
state = env.reset()
seen = [[state.feedback, state.admissible_commands, False]]
for action in given["actions"]:
    state, _, done = env.step(action)
    seen.append([state.feedback, state.admissible_commands, done])
print(json.dumps(seen))
"""
