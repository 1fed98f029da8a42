"""Java processes that run ScienceWorld's simulator: a pool of processes with many environments each.

The package ``scienceworld`` starts one process per environment (1.7 s, 300 MB) and queries all valid actions after each
step (0.2 s). Instead, this module starts ``py4j``'s gateway on the package's archive and creates any number of
simulators in it (12 MB each); a step is one raw call, a reset one ``load`` (30 ms; the package resets twice).

Two measures make an episode depend only on its task and its actions:

- Simulators in one process share a random generator and an object counter (static fields). Each ``Simulator`` has its
  own generator and counter, which are installed before it acts.
- The order in which things are listed, and even scores, depend on the addresses of Java objects. ``-XX:hashCode=2``
  gives all objects the same hash, so that things are listed in the order of their creation.

A process exits when its standard input closes, and therefore whenever the Python process ends. The gateway listens on a
free port of the loopback address and requires a secret.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import shutil
import subprocess
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol, TypeVar

from selfimprove.core.errors import UserError
from selfimprove.core.records import plain_text
from selfimprove.envs.interface import EnvError

T = TypeVar("T")

CALL_SECONDS = 180.0  # gold paths take up to 15 s on a loaded machine; beyond this limit the process is considered hung
HEAP = "-Xmx1g"
OPTIONS = (
    HEAP,
    "-XX:+IgnoreUnrecognizedVMOptions",
    "-XX:+UnlockExperimentalVMOptions",
    "-XX:hashCode=2",
    "-XX:+UseSerialGC",
    "-XX:+ExitOnOutOfMemoryError",
    "-Djava.awt.headless=true",
)

# Errors are raised as exceptions; py4j would also log them, partly through the root logger.
logging.getLogger("py4j").setLevel(logging.CRITICAL)
logging.getLogger().addFilter(lambda record: record.module != "java_gateway")


def find_java() -> str:
    """The path of Java: from JAVA_HOME if it is set, else from the PATH.

    Raises:
        UserError: there is no Java, or the two Python packages are missing.
    """
    missing = [name for name in ("scienceworld", "py4j") if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(
            f"ScienceWorld needs the Python packages scienceworld and py4j ({' and '.join(missing)} not found): run "
            "'make env-sciworld'."
        )
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    if java is None:
        where = f"in JAVA_HOME ({home})" if home else "on the PATH"
        raise UserError(
            f"ScienceWorld requires Java, but there is no java {where}: install Java 8 or newer, on Debian with "
            "'apt-get install default-jre-headless'."
        )
    return java


def _archive() -> Path:
    spec = importlib.util.find_spec("scienceworld")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).with_name("scienceworld.jar")


class JavaProcess(Protocol):
    """A process in a pool: a ``Jvm`` on this machine, or one on a cluster's node (``hosted``)."""

    lock: threading.RLock
    simulators: int
    pid: int

    @property
    def scratch(self) -> Simulator:
        """A simulator that no episode uses, for generating gold paths."""

    def alive(self) -> bool:
        """Whether the process is running."""

    def simulator(self) -> Simulator:
        """A new environment in the process. Raises: EnvError: the process failed."""

    def close(self) -> None:
        """End the process, even during a call. Idempotent."""


class Simulator:
    """One environment in a process. Thread-safe; calls into one process are serialised."""

    def __init__(self, jvm: Jvm) -> None:
        self.jvm: Any = jvm
        self._interface, self.random = jvm.make()
        self.made = 0  # the value of the object counter while another simulator acts
        self._closed = False

    def load(self, task: str, variation: int) -> None:
        """Start a game, without simplifications.

        Raises:
            EnvError: the simulator doesn't know the game, or the process failed.
        """
        error = self._act(lambda it: it.load(task, variation, "", False))
        if error:
            raise EnvError(f"sciworld: {task}, variation {variation}: {error}")

    def step(self, action: str) -> tuple[str, float, bool, int]:
        """(observation, score in [-1, 1], whether the task is completed or failed, moves made). Any text is allowed."""
        text = plain_text(action)  # lone surrogates can't be sent, and are not part of any action
        return self._act(lambda it: (it.step(text), it.getScore(), it.getCompleted(), it.getNumMoves()))

    def description(self) -> str:
        """The task's text; like all following methods, this takes no simulated time."""
        return self._act(lambda it: it.getTaskDescription())

    def look(self) -> str:
        """A description of what the agent sees."""
        return self._act(lambda it: it.freeActionLook())

    def inventory(self) -> str:
        """A description of what the agent carries."""
        return self._act(lambda it: it.freeActionInventory())

    def goal_progress(self) -> str:
        """The simulator's human-readable report on the goals reached."""
        return self._act(lambda it: it.getGoalProgressStr())

    def valid_actions(self) -> list[str]:
        """All actions that would have an effect, in the simulator's order; takes 60 to 200 ms."""
        return self._act(lambda it: self.jvm.strings(it.getValidActionObjectCombinations()))

    def templates(self) -> list[str]:
        """Kinds of actions, with OBJ as a placeholder for things."""
        return self._act(lambda it: self.jvm.strings(it.getPossibleActions()))

    def objects(self) -> list[str]:
        """The things that may replace OBJ."""
        return self._act(lambda it: self.jvm.strings(it.getPossibleObjects()))

    def moves(self) -> int:
        """The number of moves so far."""
        return self._act(lambda it: it.getNumMoves())

    def object_tree(self) -> dict[str, Any]:
        """The entire world: every thing with its properties and, under ``contents``, what is in it; 200 kB, 50 ms.

        Raises:
            EnvError: no game has been loaded, or the process failed.
        """
        with TemporaryDirectory() as folder:  # the simulator can only write it to a file
            error = self._act(lambda it: it.getObjectTree(folder))
            if error:
                raise EnvError(f"sciworld: {error}")
            return json.loads((Path(folder) / "objectTree.json").read_text(encoding="utf-8"))

    def gold(self, task: str, variation: int) -> list[str]:
        """The package's solution of a game; loads that game; takes 0.2 to 12 s."""

        def make(it: Any) -> list[str]:
            it.load(task, variation, "", True)
            return self.jvm.strings(it.getGoldActionSequence())

        return self._act(make)

    def close(self) -> None:
        """Release the environment; the process keeps running. Idempotent."""
        if not self._closed:
            self._closed = True
            self.jvm.release(self, self._interface)

    def _act(self, call: Callable[[Any], T]) -> T:
        return self.jvm.act(self, lambda: call(self._interface))


class Jvm:
    """One Java process."""

    def __init__(self) -> None:
        """Start the process; takes 0.5 to 2 s.

        Raises:
            UserError: Java or the packages are missing, or Java doesn't start.
        """
        java, archive = find_java(), _archive()
        from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
        from py4j.protocol import Py4JError

        try:
            port, token, process = launch_gateway(
                classpath=str(archive),  # after py4j's own archive: the copy in here is older and has no authentication
                java_path=java,
                javaopts=list(OPTIONS),
                cwd=str(archive.parent),  # the simulator reads a table of types next to its archive
                die_on_exit=True,
                enable_auth=True,
                return_proc=True,
            )
        except (OSError, ValueError, Py4JError) as error:
            raise UserError(
                f"ScienceWorld: {java} did not start ({error}); check whether '{java} {HEAP} -version' works."
            ) from None
        self.process: subprocess.Popen[bytes] = process
        self.pid = process.pid
        self.simulators = 0
        self.lock = threading.RLock()
        self._acting: Simulator | None = None
        self._failures = Py4JError
        try:
            self._gateway = JavaGateway(
                gateway_parameters=GatewayParameters(port=port, auth_token=token, read_timeout=CALL_SECONDS)
            )
            self._java = self._gateway.jvm
            # The simulator prints a lot at every step. Its classes keep the stream that is set when they are loaded.
            self._java.java.lang.System.setOut(self._java.java.io.PrintStream(os.devnull))
            find = self._java.java.lang.Class.forName
            self._generator = find("scala.util.Random$").getField("MODULE$").get(None)
            self._own = find("scala.util.Random").getDeclaredField("self")
            self._own.setAccessible(True)
            self._counter = self._java.util.UniqueIdentifier
        except Py4JError as error:
            self.close()
            raise UserError(
                f"ScienceWorld: the simulator does not run in {java} ({error}); install Java 8 or newer and run "
                "'make env-sciworld'."
            ) from None

    def alive(self) -> bool:
        """See ``JavaProcess``, also for the following methods."""
        return self.process.poll() is None

    @cached_property
    def scratch(self) -> Simulator:
        return Simulator(self)

    def simulator(self) -> Simulator:
        return Simulator(self)

    def make(self) -> tuple[Any, Any]:
        """Create (the package's interface to a new environment, a random generator for it)."""

        def create() -> tuple[Any, Any]:
            made = self._java.scienceworld.runtime.pythonapi.PythonInterface(), self._java.java.util.Random(0)
            self.simulators += 1
            return made

        return self.act(None, create)

    def act(self, simulator: Simulator | None, call: Callable[[], T]) -> T:
        """Run ``call``, which uses ``simulator``, with that simulator's random generator and counter installed.

        Raises:
            EnvError: the process ended, hung, or the simulator failed.
        """
        from py4j.protocol import Py4JJavaError

        with self.lock:
            try:
                if simulator is not None and simulator is not self._acting:
                    if self._acting is not None:
                        self._acting.made = self._counter.count()
                        self._acting = None
                    getattr(self._counter, "count_$eq")(simulator.made)
                    self._own.set(self._generator, simulator.random)
                    self._acting = simulator
                return call()
            except Py4JJavaError as error:
                what = "an exception in Java"
                with suppress(self._failures, OSError):
                    what = str(error.java_exception)
                raise EnvError(f"sciworld: the simulator failed: {what}") from None
            except (self._failures, OSError) as error:
                # The process is gone or stuck in a call, so nothing in it can be trusted any more. Without the wait,
                # ``alive`` would still be true for a moment.
                self.process.kill()
                self.process.wait()
                raise EnvError(f"sciworld: the Java process is gone ({error or type(error).__name__})") from None

    def strings(self, java_list: Any) -> list[str]:
        """Convert a Java list of one-line texts in one call, instead of one call per item."""
        joined = self._java.java.lang.String.join("\n", java_list)
        return joined.split("\n") if joined else []

    def release(self, simulator: Simulator, interface: Any) -> None:
        """Drop the references to a simulator, so that Java can reclaim it."""
        with self.lock:
            self.simulators -= 1
            if self._acting is simulator:
                self._acting = None
            if self.alive():
                with suppress(self._failures, OSError):
                    self._gateway.detach(interface)

    def close(self) -> None:
        """End the process and wait for its end."""
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            with suppress(OSError):
                self.process.stdin.close()
        if hasattr(self, "_gateway"):
            with suppress(Exception):
                self._gateway.close()


class JvmPool:
    """Up to ``jvms`` processes, started when needed and replaced when they end. Thread-safe."""

    def __init__(self, jvms: int = 1, start: Callable[[], JavaProcess] = Jvm) -> None:
        """``start``: starts a process; by default on this machine."""
        self._most, self._start = jvms, start
        self._jvms: list[JavaProcess] = []
        self._lock = threading.Lock()
        self._closed = False
        # Also closes the pool when it is garbage-collected, and when Python exits normally.
        weakref.finalize(self, _end, self._jvms)

    def simulator(self) -> Simulator:
        """A new environment in the process with the fewest environments.

        Raises:
            UserError: see ``Jvm``.
            EnvError: the process failed, or the pool is closed.
        """
        with self._lock:
            if self._closed:
                raise EnvError("sciworld: the Java processes have been ended")
            for jvm in [jvm for jvm in self._jvms if not jvm.alive()]:
                jvm.close()
                self._jvms.remove(jvm)
            if len(self._jvms) < self._most:
                self._jvms.append(self._start())
            return min(self._jvms, key=lambda jvm: jvm.simulators).simulator()

    def processes(self) -> list[int]:
        """The ids of the running processes."""
        with self._lock:
            return [jvm.pid for jvm in self._jvms if jvm.alive()]

    def close(self) -> None:
        """End all processes. Idempotent."""
        with self._lock:
            self._closed = True
            _end(self._jvms)


def _end(jvms: list[JavaProcess]) -> None:
    while jvms:
        jvms.pop().close()
