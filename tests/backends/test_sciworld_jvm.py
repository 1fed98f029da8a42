"""ScienceWorld's Java processes: one that hangs, fails to start or loses its owner leaves nothing behind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from selfimprove.envs.interface import EnvError
from selfimprove.envs.sciworld import jvm as sciworld_jvm
from selfimprove.envs.sciworld.jvm import JvmPool
from tests.backends.java_processes import java_of
from tests.support.processes import child_of, gone

pytestmark = pytest.mark.backend


@pytest.fixture(autouse=True, scope="module")
def none_left() -> Iterator[None]:
    yield
    assert java_of(os.getpid()) == []


def test_a_call_that_hangs_ends_the_process(capfd: pytest.CaptureFixture[str]) -> None:
    pool = JvmPool(1)
    simulator = pool.simulator()
    jvm, pid = simulator.jvm, simulator.jvm.process.pid
    jvm._gateway.close()  # closes the connections; new ones use this timeout:
    jvm._gateway.gateway_parameters.read_timeout = 2.0
    with pytest.raises(EnvError, match="the Java process is gone"):
        simulator._act(lambda it: jvm._java.java.lang.Thread.sleep(600_000))
    assert gone(pid)
    with pytest.raises(EnvError, match="the Java process is gone"):
        simulator.look()
    assert pool.simulator().jvm.process.pid != pid
    pool.close()
    assert capfd.readouterr().err == ""  # errors that are raised are not printed as well


OWNER = """
import os, sys, threading, time
from selfimprove.envs.sciworld.env import SciWorld
from selfimprove.envs.sciworld.jvm import JvmPool
pool = JvmPool(1)
env = SciWorld(pool)
env.reset(0)
print(*pool.processes(), flush=True)
if sys.argv[1] == "raises":
    raise RuntimeError("a stage failed")
if sys.argv[1] == "exits":
    os._exit(3)
env.expert() if sys.argv[1] == "busy" else time.sleep(60)
time.sleep(60)
"""


@pytest.mark.parametrize("end", ["raises", "exits", "idle", "busy"])
def test_no_java_process_outlives_its_owner(end: str) -> None:
    """The owner raises, exits without cleaning up, or is killed while idle or during a long call."""
    assert gone(child_of(OWNER, end))


def test_java_that_fails_to_start_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\nexit 1\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(sciworld_jvm.UserError, match="did not start"):
        JvmPool(1).simulator()
