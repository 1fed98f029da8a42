"""ScienceWorld: elementary-school experiments in a house with ten rooms (Wang et al. 2022), as served by AgentGym.

An episode (game 3245, ``find-non-living-thing``, variation 9; the gold path)::

    Your task is to find a(n) non-living thing. First, focus on the thing. Then, move it to the orange box in the
    bathroom.
    This room is called the bedroom. In it, you see: the agent, a substance called air, a bed. On the bed is: ...
    You also see: A door to the hallway (that is closed)
    > open door to hallway
    The door is now open.                                      (score 0.08)
    > go to hallway
    You move to the hallway.                                   (score 0.17)
    > ...
    > focus on painting
    You focus on the painting.                                 (score 0.75)
    > move painting to orange box
    You move the painting to the orange box.                   (score 1.0, done)

Optional: needs Java and ``make env-sciworld``. No simplifications are enabled, and 100 moves are allowed; looking and
actions that are not understood are free. The score is cumulative, 0 to 100, here scaled to 0 to 1. Focusing on a wrong
thing is fatal: -100 in the original; here the reward is 0, the episode ends, and ``info["disaster"]`` is set. ``wait``
takes ten ticks and 11 moves; Agent-R's driver responds to it instead of the environment (docs/agent-r.md, A4 and A39).
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from selfimprove.envs.interface import EnvError, Move, Step
from selfimprove.envs.replay import ReplayWorld
from selfimprove.envs.sciworld.actions import NOT_UNDERSTOOD, candidates, gold_move, map_action
from selfimprove.envs.sciworld.games import GAMES, game, ids_of_games
from selfimprove.envs.sciworld.hosted import make_pool
from selfimprove.envs.sciworld.jvm import JavaProcess, JvmPool, Simulator

T = TypeVar("T")

MOVES = 100
PLACES = 16  # environments per Java process, each of which takes 12 MB of its heap

INSTRUCTION = """\
You do science experiments in a house that is described to you in words. You are told a task. After every action you \
see what happened.

These actions are possible; write the name of a thing in the place of OBJ, and of a room in the place of ROOM:
open OBJ: open a door or a container (a door: open door to ROOM)
close OBJ: close a door or a container
activate OBJ: turn a device on
deactivate OBJ: turn a device off
connect OBJ to OBJ: connect electrical parts
disconnect OBJ: take an electrical part out of the circuit
use OBJ: use a tool or a device
use OBJ on OBJ: use a tool or a device on something
look around: describe the room
look at OBJ: describe a thing
look in OBJ: describe what is in a container
examine OBJ: describe a thing closely
read OBJ: read a note or a book
move OBJ to OBJ: put a thing into a container
pick up OBJ: take a thing with you
put down OBJ: drop a thing that you carry
pour OBJ into OBJ: pour a liquid into a container
dunk OBJ into OBJ: dip a container into a liquid
mix OBJ: mix what is in a container
go to ROOM: go to a neighbouring room, through an open door
eat OBJ: eat something
flush OBJ: flush a toilet
focus on OBJ: show which thing the task is about; the wrong thing ends the task
wait: do nothing for ten steps
wait1: do nothing for one step
task: read the task again
inventory: list what you carry
If an action can be meant in several ways, you get a numbered list; then answer with the number alone.

Answer in this format:
Thought: what you think
Action: one action"""

_log = logging.getLogger(__name__)
_gold: dict[int, tuple[str, ...]] = {}  # task id -> its gold path, cached in this process


class SciWorldSnapshot(NamedTuple):
    """A snapshot. The simulator can't be copied, so restoring replays the actions."""

    task_id: int
    actions: tuple[str, ...]


def outcome(observation: str, score: float, completed: bool, moves: int) -> Step:
    """The package's result of a step, converted to our scale.

    Args:
        observation: the simulator's response.
        score: the simulator's score, in [0, 1]; negative after a fatal mistake.
        completed: whether the task is completed or failed.
        moves: the number of moves so far.

    Returns:
        reward: the score, rounded to whole percents; 0 if it is negative (``info["disaster"]``).
        done: completed, failed, or out of moves.
        info: ``raw_score`` (-100 to 100), ``disaster``, ``valid`` (False: not understood, or ambiguous), ``moves``.
    """
    raw = round(100 * score)
    disaster = raw < 0
    return Step(
        observation,
        0.0 if disaster else raw / 100,
        completed or disaster or moves > MOVES,
        {"raw_score": raw, "disaster": disaster, "valid": not observation.startswith(NOT_UNDERSTOOD), "moves": moves},
    )


class SciWorld:
    """The environment (``AgentEnv``). Java starts with the first ``reset``; copies share only processes.

    ``map_actions``: actions are first mapped to the closest valid ones (``actions``); ``info["mapped_from"]`` is then
    the original action, ``info["mapped_to"]`` the one performed. This costs 0.1 to 0.2 s per step.

    Attributes:
        begun_with: the episode's reward after ``reset``; above 0 in games that begin in the room of the goal.
    """

    name = "sciworld"
    instruction = INSTRUCTION

    def __init__(self, pool: JvmPool, *, map_actions: bool = False) -> None:
        self._pool = pool
        self._map_actions = map_actions
        self._simulator: Simulator | None = None
        self._task_id = -1
        self._actions: tuple[str, ...] = ()
        self._done = False
        self.begun_with = 0.0

    @property
    def simulator(self) -> Simulator:
        """This environment's simulator, for functions beyond ``AgentEnv``.

        Raises:
            EnvError: ``reset`` has not been called yet.
        """
        if self._simulator is None:
            raise EnvError("sciworld: no episode has begun; reset first")
        return self._simulator

    def start(self) -> Simulator:
        """The simulator; a new one if there is none or its process is gone. ``reset`` calls this.

        Raises:
            UserError: Java or the packages are missing.
            EnvError: the process failed.
        """
        if self._simulator is None or not self._simulator.jvm.alive():
            self._simulator = self._pool.simulator()
        return self._simulator

    def task_ids(self) -> range:
        """The flat indices of all games."""
        return range(len(GAMES))

    def ids_of_games(self, start: int, stop: int | None, variations: int, among: Sequence[int] | None) -> list[int]:
        """See ``ListsGames``: Agent-R's loop over task numbers."""
        return ids_of_games(start, stop, variations, among)

    def reset(self, task_id: int) -> str:
        """The task's text, a newline, and a description of the room.

        Raises:
            UserError: no such task; Java or the packages are missing.
            EnvError: the process failed.
        """
        task, variation = game(task_id)
        simulator = self.start()
        simulator.load(task, variation)
        description = simulator.description()
        first = outcome(*simulator.step("look around"))
        self._task_id, self._actions, self._done, self.begun_with = task_id, (), False, first.reward
        return f"{description}\n{first.observation}"

    def step(self, action: str) -> Step:
        """See ``AgentEnv``.

        Raises:
            EnvError: the process failed; ``reset`` starts a new one.
        """
        simulator = self.simulator
        said, action = action, self._mapped(action)
        step = outcome(*simulator.step(action))
        self._actions, self._done = (*self._actions, said), step.done
        if action != said:
            step = step._replace(info={**step.info, "mapped_from": said, "mapped_to": action})
        return step

    def snapshot(self) -> SciWorldSnapshot:
        """The task and the actions so far."""
        return SciWorldSnapshot(self._task_id, self._actions)

    def restore(self, snapshot: SciWorldSnapshot) -> None:
        """Replay the episode up to the snapshot; without a reset if this copy is in that state or an earlier one."""
        task_id, actions = snapshot
        done = len(self._actions)
        if task_id != self._task_id or self._actions != actions[:done]:
            self.reset(task_id)
            done = 0
        for action in actions[done:]:
            self.step(action)

    def valid_actions(self) -> list[str]:
        """All actions that would have an effect, sorted; takes 60 to 200 ms."""
        return sorted(self.simulator.valid_actions())

    def expert(self) -> list[Move]:
        """The rest of the package's gold path, as long as it has been followed since ``reset``; otherwise [].

        It is generated once per process (0.2 to 12 s) and played once, to cut it off at score 1. It is also [] for
        games whose gold path does not reach score 1 within the allowed moves, such as most of ``freeze``. ``wait`` is
        replaced by six ``wait1``, because the driver does not pass ``wait`` to the environment.

        Raises:
            EnvError: the process failed.
        """
        if self._done or self._task_id < 0:
            return []
        gold = self._gold_path()
        done = len(self._actions)
        return [gold_move(action) for action in gold[done:]] if gold[:done] == self._actions else []

    def close(self) -> None:
        """Release the simulator; the process runs until the pool is closed. Idempotent."""
        if self._simulator is not None:
            self._simulator.close()
            self._simulator = None

    def _gold_path(self) -> tuple[str, ...]:
        if self._task_id not in _gold:
            task, variation = game(self._task_id)
            jvm = self.simulator.jvm
            with jvm.lock:
                scratch, gold = jvm.scratch, list[str]()
                for action in scratch.gold(task, variation):
                    gold += ["wait1"] * 6 if action == "wait" else [action]
                _gold[self._task_id] = _winning(scratch, task, variation, gold)
        return _gold[self._task_id]

    def _mapped(self, action: str) -> str:
        if not self._map_actions or action.strip().isdigit():  # a number answers an ambiguous request
            return action
        simulator = self.simulator
        valid = simulator.valid_actions()
        mapped = map_action(action, candidates(valid, simulator.look(), simulator.inventory()), valid)
        if mapped != action:
            _log.info("sciworld: task %d: %r is taken for %r", self._task_id, action, mapped)
        return mapped


def _winning(simulator: Simulator, task: str, variation: int, gold: list[str]) -> tuple[str, ...]:
    """The actions of ``gold`` up to score 1; () if score 1 isn't reached."""
    simulator.load(task, variation)
    simulator.step("look around")
    for i, action in enumerate(gold):
        step = outcome(*simulator.step(action))
        if step.done:
            return tuple(gold[: i + 1]) if step.reward == 1 else ()
    return ()


class SciWorldSlot:
    """One copy for a replay world (``envs.replay.Slot``). Calls run in a thread that belongs to its Java process."""

    def __init__(self, env: SciWorld, thread: ThreadPoolExecutor) -> None:
        self._env = env
        self._thread = thread

    async def reset(self, task_id: int) -> str:
        return await self._in_thread(lambda: self._env.reset(task_id))

    async def step(self, action: str) -> Step:
        return await self._in_thread(lambda: self._env.step(action))

    async def close(self) -> None:
        """Release the copy after any call in progress."""
        await self._in_thread(self._env.close)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)


class SciWorldWorld(ReplayWorld):
    """ScienceWorld as a ``World``: 16 live environments in each of ``jvms`` processes; states are reached by replay."""

    def __init__(self, jvms: int, map_actions: bool) -> None:
        super().__init__(SciWorld.name, INSTRUCTION, self._slot, slots=jvms * PLACES)
        self._map_actions = map_actions
        self._threads: dict[JavaProcess, ThreadPoolExecutor] = {}
        self.pool = make_pool(jvms)

    async def _slot(self) -> SciWorldSlot:
        env = SciWorld(self.pool, map_actions=self._map_actions)
        jvm = (await asyncio.to_thread(env.start)).jvm
        if jvm not in self._threads:
            self._threads[jvm] = ThreadPoolExecutor(1, thread_name_prefix="sciworld")
        return SciWorldSlot(env, self._threads[jvm])

    async def close(self) -> None:
        """See ``World``; also ends all Java processes. Idempotent."""
        try:
            await super().close()
        finally:
            await asyncio.to_thread(self.pool.close)
            for thread in self._threads.values():
                thread.shutdown(wait=False)
