"""Java processes that run ScienceWorld's simulator: a pool, many environments in each process, none left behind.

The package ``scienceworld`` starts one process for each environment (1.7 s, 300 MB) and asks it, after every step, for
all valid actions (0.2 s). We start ``py4j``'s gateway on the package's archive ourselves and make as many simulators in
it as are needed (12 MB each); a step is one raw call, a reset one ``load`` (30 ms: the package resets twice).

Two things have to be done so that an episode depends on nothing but its task and its actions:

- Simulators in one process share a random generator and a counter of objects (static fields). Each ``Simulator`` keeps
  its own of both, which are put in place before it acts.
- The order in which things are listed, and even scores, follow the addresses of Java objects. ``-XX:hashCode=2`` gives
  all objects the same hash, so that the order is the order in which things were made.

A process ends when its standard input closes, and so with the Python process, however that ends. The gateway listens
on the loopback address, at a free port, and wants a secret that only we know.
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
from selfimprove.envs.interface import EnvError

T = TypeVar("T")

CALL_SECONDS = 180.0  # gold paths take up to 15 s where the machine is busy; more means that the process hangs
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

# What goes wrong is raised; py4j would print it, too, some of it by way of the root logger.
logging.getLogger("py4j").setLevel(logging.CRITICAL)
logging.getLogger().addFilter(lambda record: record.module != "java_gateway")


def find_java() -> str:
    """Java's path: of JAVA_HOME if that is set, else from the PATH.

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
    """What a pool holds: a ``Jvm`` of this machine, or one on a cluster's node (``hosted``)."""

    lock: threading.RLock
    simulators: int
    pid: int

    @property
    def scratch(self) -> Simulator:
        """A simulator apart from all episodes, to make gold paths in."""

    def alive(self) -> bool:
        """Whether the process runs."""

    def simulator(self) -> Simulator:
        """A new environment in it. Raises: EnvError: the process failed."""

    def close(self) -> None:
        """End the process, also in mid-call. May be called again."""


class Simulator:
    """One environment in a process. Threads may share it; calls into one process happen one at a time."""

    def __init__(self, jvm: Jvm) -> None:
        self.jvm: Any = jvm
        self._interface, self.random = jvm.make()
        self.made = 0  # the counter of objects, while another simulator acts
        self._closed = False

    def load(self, task: str, variation: int) -> None:
        """Begin a game, without simplifications.

        Raises:
            EnvError: the simulator doesn't know the game, or the process failed.
        """
        error = self._act(lambda it: it.load(task, variation, "", False))
        if error:
            raise EnvError(f"sciworld: {task}, variation {variation}: {error}")

    def step(self, action: str) -> tuple[str, float, bool, int]:
        """(observation, score in [-1, 1], whether the task is completed or failed, moves made). Any text is allowed."""
        # A lone surrogate can't be sent; it can't be part of an action either.
        text = action.encode("utf-8", "replace").decode("utf-8")
        return self._act(lambda it: (it.step(text), it.getScore(), it.getCompleted(), it.getNumMoves()))

    def description(self) -> str:
        """The task's text; free, as are all that follow: no time passes."""
        return self._act(lambda it: it.getTaskDescription())

    def look(self) -> str:
        """What the agent sees."""
        return self._act(lambda it: it.freeActionLook())

    def inventory(self) -> str:
        """What the agent carries."""
        return self._act(lambda it: it.freeActionInventory())

    def goal_progress(self) -> str:
        """The simulator's report on the goals reached, for people."""
        return self._act(lambda it: it.getGoalProgressStr())

    def valid_actions(self) -> list[str]:
        """Every action that would do something, in the simulator's order; 60 to 200 ms."""
        return self._act(lambda it: self.jvm.strings(it.getValidActionObjectCombinations()))

    def templates(self) -> list[str]:
        """Kinds of actions, with OBJ in the place of things."""
        return self._act(lambda it: self.jvm.strings(it.getPossibleActions()))

    def objects(self) -> list[str]:
        """What may stand in the place of OBJ."""
        return self._act(lambda it: self.jvm.strings(it.getPossibleObjects()))

    def moves(self) -> int:
        """Made so far."""
        return self._act(lambda it: it.getNumMoves())

    def object_tree(self) -> dict[str, Any]:
        """The whole world: every thing with its properties and, below ``contents``, what is in it; 200 kB, 50 ms.

        Raises:
            EnvError: no game has been loaded, or the process failed.
        """
        with TemporaryDirectory() as folder:  # the simulator only writes it to a file
            error = self._act(lambda it: it.getObjectTree(folder))
            if error:
                raise EnvError(f"sciworld: {error}")
            return json.loads((Path(folder) / "objectTree.json").read_text(encoding="utf-8"))

    def gold(self, task: str, variation: int) -> list[str]:
        """The package's way to solve a game; loads that game; 0.2 to 12 s."""

        def make(it: Any) -> list[str]:
            it.load(task, variation, "", True)
            return self.jvm.strings(it.getGoldActionSequence())

        return self._act(make)

    def close(self) -> None:
        """Let go of the environment; the process stays. May be called again."""
        if not self._closed:
            self._closed = True
            self.jvm.release(self, self._interface)

    def _act(self, call: Callable[[Any], T]) -> T:
        return self.jvm.act(self, lambda: call(self._interface))


class Jvm:
    """One Java process."""

    def __init__(self) -> None:
        """Start it; 0.5 to 2 s.

        Raises:
            UserError: Java or the packages are missing, or Java doesn't start.
        """
        java, archive = find_java(), _archive()
        from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway
        from py4j.protocol import Py4JError

        try:
            port, token, process = launch_gateway(
                classpath=str(archive),  # behind py4j's own archive: the one in here is older and knows no secret
                java_path=java,
                javaopts=list(OPTIONS),
                cwd=str(archive.parent),  # the simulator reads a table of types beside its archive
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
            # The simulator prints pages at every step. Before its first class is loaded, nobody holds the old stream.
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
        """See ``JavaProcess``, here and below."""
        return self.process.poll() is None

    @cached_property
    def scratch(self) -> Simulator:
        return Simulator(self)

    def simulator(self) -> Simulator:
        return Simulator(self)

    def make(self) -> tuple[Any, Any]:
        """(the package's interface to a new environment, a random generator for it)."""

        def create() -> tuple[Any, Any]:
            made = self._java.scienceworld.runtime.pythonapi.PythonInterface(), self._java.java.util.Random(0)
            self.simulators += 1
            return made

        return self.act(None, create)

    def act(self, simulator: Simulator | None, call: Callable[[], T]) -> T:
        """Run ``call``, which speaks to ``simulator``, with that one's random generator and counter in place.

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
                # Gone, or still at a call that takes for ever: nothing in this process can be trusted any more. Without
                # the wait it would pass for alive a moment longer.
                self.process.kill()
                self.process.wait()
                raise EnvError(f"sciworld: the Java process is gone ({error or type(error).__name__})") from None

    def strings(self, java_list: Any) -> list[str]:
        """A Java list of one-line texts, in one call instead of one for each."""
        joined = self._java.java.lang.String.join("\n", java_list)
        return joined.split("\n") if joined else []

    def release(self, simulator: Simulator, interface: Any) -> None:
        """Forget a simulator, so that Java can reclaim it."""
        with self.lock:
            self.simulators -= 1
            if self._acting is simulator:
                self._acting = None
            if self.alive():
                with suppress(self._failures, OSError):
                    self._gateway.detach(interface)

    def close(self) -> None:
        """On return it is gone."""
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            with suppress(OSError):
                self.process.stdin.close()
        if hasattr(self, "_gateway"):
            with suppress(Exception):
                self._gateway.close()


class JvmPool:
    """Up to ``jvms`` processes, started when needed; one that ended is replaced. Threads may share it."""

    def __init__(self, jvms: int = 1, start: Callable[[], JavaProcess] = Jvm) -> None:
        """``start``: starts one; by default on this machine."""
        self._most, self._start = jvms, start
        self._jvms: list[JavaProcess] = []
        self._lock = threading.Lock()
        self._closed = False
        # Nobody has to remember to close a pool: it is closed when it is dropped, and when Python ends in good order.
        weakref.finalize(self, _end, self._jvms)

    def simulator(self) -> Simulator:
        """A new environment, in the process that has fewest.

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
        """Ids of the processes that run."""
        with self._lock:
            return [jvm.pid for jvm in self._jvms if jvm.alive()]

    def close(self) -> None:
        """End all processes. May be called again."""
        with self._lock:
            self._closed = True
            _end(self._jvms)


def _end(jvms: list[JavaProcess]) -> None:
    while jvms:
        jvms.pop().close()
