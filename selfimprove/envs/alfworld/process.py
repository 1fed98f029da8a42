"""The link to ALFWorld's process: starts it when needed, calls it with a time limit, kills and replaces it.

    >>> process = AlfWorldProcess()
    >>> process.ask("hello")
    {'alfworld': '0.4.2', 'textworld': '1.7.0'}

ALFWorld's packages are installed in a separate environment (``make env-alfworld``). The original runs a game in a
thread, which stays alive when a step takes too long; a process can be killed.
"""

import json
import os
import subprocess
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector
from time import monotonic
from typing import Any

from selfimprove.core.errors import UserError
from selfimprove.envs.alfworld.games import AlfGame
from selfimprove.envs.interface import EnvError

ROOT = Path(__file__).resolve().parents[3]
PYTHON = ROOT / ".venvs" / "alfworld" / "bin" / "python"
WORKER = Path(__file__).with_name("worker.py")
SECONDS = 120.0  # a step takes milliseconds and a plan up to a second, but the machine may be busy
START_SECONDS = 300.0


class GameFailed(EnvError):
    """The process reported that a request failed; it and its other games are intact."""


class ProcessGone(EnvError):
    """The process ended or was killed, and with it every game in it. ``late``: it was killed at the time limit."""

    def __init__(self, message: str, late: bool) -> None:
        super().__init__(message)
        self.late = late


class AlfWorldProcess:
    """One process with any number of games. Threads may share it; requests are answered one at a time.

    ``python``: the interpreter of the environment with ALFWorld; by default that of the environment variable
    ALFWORLD_PYTHON, or ``.venvs/alfworld`` in the repository. ``seconds``: the time limit of one answer. ``life``
    counts the processes so far: games of an earlier life are lost.
    """

    def __init__(self, python: Path | None = None, seconds: float = SECONDS) -> None:
        """Does not start the process. Raises: UserError: ``seconds`` is not positive."""
        if not seconds > 0:
            raise UserError(f"alfworld: a step's limit must be more than 0 seconds, not {seconds}.")
        own = os.environ.get("ALFWORLD_PYTHON")
        self._python = python or (Path(own) if own else PYTHON)
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.RLock()
        self._buffer = bytearray()
        self._alive: list[subprocess.Popen[bytes]] = []
        self.life = 0
        self.left: list[tuple[int, int]] = []  # (life, game): games that are no longer used
        weakref.finalize(self, _end, self._alive)  # when garbage-collected, and at Python's normal exit

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def ask(self, operation: str, seconds: float | None = None, **fields: Any) -> dict[str, Any]:
        """Send a request and wait for the answer; starts the process if there is none.

        Raises:
            UserError: ALFWorld's environment is missing or does not work.
            GameFailed: the request failed.
            ProcessGone: the process ended before it answered, or was killed at the time limit.
        """
        with self._lock:
            if self.pid is None:
                self.start()
            left = [self.left.pop() for _ in range(len(self.left))]
            gone = {"left": [game for life, game in left if life == self.life]}
            answer = self.exchange({"op": operation, **gone, **fields}, seconds or self._seconds)
        if "error" in answer:
            raise GameFailed(f"alfworld: {answer['error']}")
        return answer

    def start(self) -> None:
        """Start the process, replacing one that has ended. Raises: UserError: as ``ask``."""
        if not self._python.is_file():
            raise UserError(
                f"ALFWorld's Python environment is missing ({self._python}): run 'make env-alfworld', or use the "
                "built-in kitchen, which needs none ('make play ENV=kitchen'; in params.yaml, env.backend: kitchen)."
            )
        self.close()
        # The order of listed facts is that of hashed sets. -P: the folder's math.py must not shadow Python's.
        environment = {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "PATH": os.defpath, "PYTHONNOUSERSITE": "1"}
        try:
            self._process = subprocess.Popen(
                [str(self._python), "-P", "-s", "-u", str(WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=environment,
                start_new_session=True,  # Ctrl-C is handled by this process
            )
        except OSError as error:
            raise UserError(f"{self._python} cannot be started ({error.strerror}); run 'make env-alfworld'.") from None
        self._alive.append(self._process)
        self._buffer.clear()
        self.life += 1
        try:
            answer = self.exchange({"op": "hello", "left": []}, START_SECONDS)
        except ProcessGone as error:
            raise UserError(f"ALFWorld does not start ({error}); run 'make env-alfworld' again.") from None
        if "error" in answer:
            self.close()
            raise UserError(f"ALFWorld does not work ({answer['error']}); run 'make env-alfworld' again.")

    def exchange(self, request: dict[str, Any], seconds: float) -> dict[str, Any]:
        """Send a request and wait for its answer. Raises: ProcessGone: as ``ask``."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        deadline = monotonic() + seconds
        try:
            process.stdin.write(json.dumps(request).encode("ascii") + b"\n")
            process.stdin.flush()
            with DefaultSelector() as selector:
                selector.register(process.stdout, EVENT_READ)
                while b"\n" not in self._buffer:
                    if not selector.select(max(0.0, deadline - monotonic())):
                        self.close()
                        raise ProcessGone(f"no answer within {seconds:g} s, the process was ended", late=True)
                    part = os.read(process.stdout.fileno(), 1 << 16)
                    if not part:
                        raise OSError
                    self._buffer += part
        except OSError:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=5)
            status = process.poll()
            self.close()
            raise ProcessGone(f"the process ended with status {status}", late=False) from None
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer = bytearray(rest)
        return dict(json.loads(line))

    def close(self) -> None:
        """Kill the process, even during a step, and wait for it. May be called again; ``ask`` starts a new one."""
        with self._lock:
            self._process = None
            _end(self._alive)


class LiveGame:
    """One game in the process: its task and the actions done in it. After the process ended, it must be begun again."""

    def __init__(self, process: AlfWorldProcess) -> None:
        self._process = process
        self._session, self._life, self._task = 0, 0, -1
        self.actions: list[str] = []
        self._gone: weakref.finalize[..., Any] | None = None

    def follows(self, task: int, actions: list[str]) -> bool:
        """Whether these actions start with those already done in the game."""
        there = self._alive() and task == self._task
        return there and actions[: len(self.actions)] == self.actions

    def begin(self, task: int, game: AlfGame) -> dict[str, Any]:
        """Release the previous game, and start this one. Raises: as ``AlfWorldProcess.ask``, like the methods below."""
        self.close()
        told = self._process.ask("open", problem=game.problem, goal=game.sentence)
        self._session, self._life, self._task = told["session"], self._process.life, task
        # Queued instead of sent at once: garbage collection may happen during another request.
        self._gone = weakref.finalize(self, self._process.left.append, (self._life, self._session))
        self.actions = []
        return told

    def step(self, action: str) -> dict[str, Any]:
        """Execute an admissible command."""
        told = self._process.ask("step", session=self._session, command=action)
        self.actions.append(action)
        return told

    def plan(self) -> list[str]:
        """The planner's commands from here to the goal."""
        return list(self._process.ask("plan", session=self._session)["plan"])

    def close(self) -> None:
        """Release the game; the process is notified with the next request."""
        if self._gone is not None:
            self._gone()
        self._session = 0

    def _alive(self) -> bool:
        return bool(self._session) and self._life == self._process.life and self._process.pid is not None


def _end(processes: list[subprocess.Popen[bytes]]) -> None:
    while processes:
        process = processes.pop()
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
