"""A world over a few live copies of an environment that cannot be snapshotted: states are reached by replay.

A state is a task and the actions since its start. A copy in that state acts in it directly; a copy in an earlier state
of the same path replays the remaining actions; any other copy is reset and replays all of them. A tree can therefore
grow from any node, and hundreds of episodes share ``slots`` copies (environments on servers, or Java processes).

    reset(7)         -> slot 1: reset 7
    step([], "a")    -> slot 1 is in this state: a
    step([], "b")    -> slot 2: reset 7, b            (slot 1 is in [a])
    step([a], "c")   -> slot 1 is in this state: c
    step([b], "c")   -> slot 2 is in this state: c
    step([a, c], …)  -> slot 1 is in this state, …

A copy's responses must depend only on the task and the actions (true of all AgentGym environments). A copy that fails
is replaced by a fresh one, and the state is replayed once more.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Protocol, TypeVar

from selfimprove.core.seeds import key_bits
from selfimprove.envs.interface import EnvError, Step, World

T = TypeVar("T")


class Slot(Protocol):
    """One live copy of an environment. One call at a time; every call has its own time limit."""

    async def reset(self, task_id: int) -> str:
        """Start a task from any state of the copy and return the first observation.

        Raises:
            EnvError: this copy cannot continue (broken connection, unknown to its server, an error response).
            UserError: no copy can ever do it (no such task, no server).
        """

    async def step(self, action: str) -> Step:
        """Act. Raises: as ``reset``."""

    async def close(self) -> None:
        """Release the copy. Idempotent; also allowed on a copy that failed or was cancelled during a call."""


@dataclass(frozen=True)
class ReplayState:
    """State of an episode. ``seen`` is a hash of the last observation, with which replays are compared."""

    task_id: int
    actions: tuple[str, ...]
    done: bool
    seen: int


@dataclass
class ReplayStats:
    """Counts since the world was created.

    ``steps``: new actions; ``direct``: new actions for which a copy was already in the state; ``replayed``: actions
    repeated to reach a state; ``resets``: all resets; ``failures``: copies that failed and were discarded;
    ``diverged``: replays whose last observation differed from the first time (the environment is not deterministic, or
    its server was restarted with other data).
    """

    steps: int = 0
    direct: int = 0
    replayed: int = 0
    resets: int = 0
    failures: int = 0
    diverged: int = 0


def replay_counts(world: World) -> dict[str, float]:
    """``world_<count>`` of a replay world, for a stage's timing; all but ``diverged`` depend on the order of calls."""
    stats = _stats(world)
    return {f"world_{name}": count for name, count in asdict(stats).items()} if stats else {}


def diverged(world: World) -> int:
    """The number of replays that saw a different observation; 0 for a world that never replays."""
    stats = _stats(world)
    return stats.diverged if stats else 0


def _stats(world: World) -> ReplayStats | None:
    stats = getattr(world, "stats", None)
    return stats if isinstance(stats, ReplayStats) else None


@dataclass
class _Place:
    """A place for one copy. ``slot`` None: not created yet, or discarded. ``actions`` None: its state is unknown."""

    used: int
    slot: Slot | None = None
    task_id: int = 0
    actions: tuple[str, ...] | None = None

    def rank(self, task_id: int | None, actions: tuple[str, ...]) -> tuple[int, int, int]:
        """Smaller is better: on the path to the state (closest first), then empty, then least recently used."""
        if self.slot is None:
            return 1, 0, self.used
        if self.stands_before(task_id, actions):
            return 0, -len(self.actions or ()), self.used
        return 2, 0, self.used

    def stands_before(self, task_id: int | None, actions: tuple[str, ...]) -> bool:
        """Whether the copy is in the state, or can reach it by further actions."""
        if self.slot is None or self.actions is None or self.task_id != task_id:
            return False
        return actions[: len(self.actions)] == self.actions


class ReplayWorld:
    """See the module docstring. As in any ``World``, old states stay valid, and any number of calls may be pending.

    Calls that wait for a copy are served in order of arrival; a slow copy delays only its own call. A cancelled call
    passes its place on; a copy whose call was cancelled is discarded, because its state is unknown. At most ``slots``
    copies exist at any time.
    """

    def __init__(self, name: str, instruction: str, make_slot: Callable[[], Awaitable[Slot]], slots: int) -> None:
        """No copy is created before it is needed.

        Args:
            name: the name in the params.
            instruction: the first user message.
            make_slot: creates a fresh copy; raises EnvError (retried once) or UserError (ends the stage).
            slots: the maximum number of live copies, at least 1.
        """
        self.name = name
        self.instruction = instruction
        self.stats = ReplayStats()
        self._make_slot = make_slot
        self._places = [_Place(used=-slots + i) for i in range(slots)]
        self._idle = list(self._places)
        self._waiting: deque[asyncio.Future[_Place]] = deque()
        self._retiring: set[asyncio.Task[None]] = set()
        self._clock = 0
        self._closed = False
        self._all_closed = asyncio.Event()

    async def reset(self, task_id: int) -> tuple[ReplayState, str]:
        async def play(place: _Place) -> tuple[ReplayState, str]:
            observation = await self._reset(place, task_id)
            return ReplayState(task_id, (), False, key_bits(observation)), observation

        return await self._on_a_copy(None, (), play, f"task {task_id}, reset")

    async def step(self, state: ReplayState, action: str) -> tuple[ReplayState, Step]:
        """See ``World``.

        Raises:
            EnvError: also if the episode is over in ``state``.
        """
        where = f"task {state.task_id}, action {len(state.actions) + 1} ({action[:80]!r})"
        if state.done:
            raise EnvError(f"{self.name}: {where}: the episode is over; nothing more can be done in it")

        async def play(place: _Place) -> tuple[ReplayState, Step]:
            direct = place.actions == state.actions and place.task_id == state.task_id
            if not direct:
                await self._replay(place, state)
            step = await self._step(place, action)
            self.stats.steps += 1
            self.stats.direct += direct
            return ReplayState(state.task_id, (*state.actions, action), step.done, key_bits(step.observation)), step

        return await self._on_a_copy(state.task_id, state.actions, play, where)

    async def close(self) -> None:
        """Release every copy; calls in progress complete first, waiting calls fail with EnvError."""
        self._closed = True
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_exception(EnvError(f"{self.name}: the world is closed"))
        idle, self._idle = self._idle, []
        for place in idle:
            self._give(place)
        await self._all_closed.wait()

    async def _on_a_copy(
        self, task_id: int | None, actions: tuple[str, ...], play: Callable[[_Place], Awaitable[T]], where: str
    ) -> T:
        """Run ``play`` on the most suitable copy; if that copy fails, once more on a fresh one."""
        place = await self._take(task_id, actions)
        try:
            try:
                return await self._play(place, play)
            except EnvError:
                self.stats.failures += 1
                await self._discard(place)
            try:
                return await self._play(place, play)
            except EnvError as error:
                self.stats.failures += 1
                raise EnvError(
                    f"{self.name}: {where}: failed twice, the second time on a fresh copy: {error}"
                ) from None
        finally:
            if place.slot is not None and place.actions is None:
                self._retire(place)
            else:
                self._give(place)

    async def _play(self, place: _Place, play: Callable[[_Place], Awaitable[T]]) -> T:
        if place.slot is None:
            place.slot = await self._make_slot()
        return await play(place)

    async def _replay(self, place: _Place, state: ReplayState) -> None:
        """Bring the copy into ``state``."""
        seen = None
        if not place.stands_before(state.task_id, state.actions):
            seen = key_bits(await self._reset(place, state.task_id))
        assert place.actions is not None
        for i in range(len(place.actions), len(state.actions)):
            step = await self._step(place, state.actions[i])
            self.stats.replayed += 1
            seen = key_bits(step.observation)
            if step.done:
                raise EnvError(f"the replay ended after {i + 1} of {len(state.actions)} actions")
        self.stats.diverged += seen != state.seen

    # The state of a copy whose call did not return normally is unknown: ``actions`` stays None.

    async def _reset(self, place: _Place, task_id: int) -> str:
        assert place.slot is not None
        place.actions = None
        self.stats.resets += 1
        observation = await place.slot.reset(task_id)
        place.task_id, place.actions = task_id, ()
        return observation

    async def _step(self, place: _Place, action: str) -> Step:
        assert place.slot is not None
        assert place.actions is not None
        before, place.actions = place.actions, None
        step = await place.slot.step(action)
        place.actions = (*before, action)
        return step

    async def _take(self, task_id: int | None, actions: tuple[str, ...]) -> _Place:
        """The most suitable idle place, or the next one to be returned."""
        if self._closed:
            raise EnvError(f"{self.name}: the world is closed")
        if self._idle:
            place = min(self._idle, key=lambda each: each.rank(task_id, actions))
            self._idle.remove(place)
            return place
        future: asyncio.Future[_Place] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        try:
            return await future
        except asyncio.CancelledError:
            # Cancelled between being served and resuming.
            if future.done() and not future.cancelled() and future.exception() is None:
                self._give(future.result())
            raise

    def _give(self, place: _Place) -> None:
        """Hand the place to the call that has waited longest, or mark it idle."""
        self._clock += 1
        place.used = self._clock
        if self._closed and place.slot is not None:
            self._retire(place)
            return
        while self._waiting:
            future = self._waiting.popleft()
            if not future.done():
                future.set_result(place)
                return
        self._idle.append(place)
        if self._closed and len(self._idle) == len(self._places):
            self._all_closed.set()

    def _retire(self, place: _Place) -> None:
        """Discard the copy in the background, as the caller may be being cancelled, then pass the place on."""

        async def work() -> None:
            try:
                await self._discard(place)
            finally:
                place.slot = None
                self._give(place)

        task = asyncio.get_running_loop().create_task(work())
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    async def _discard(self, place: _Place) -> None:
        """Close the copy, ignoring errors."""
        if place.slot is not None:
            place.actions = None
            with suppress(Exception):
                await place.slot.close()
            place.slot = None
