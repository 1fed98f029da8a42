"""An engine whose replicas are actors on a Ray cluster's nodes.

Every node holds as many replicas as it has room for; episodes, journal and queue stay in the stage's process. A replica
has the same slots and threads as one that ``replicas.py`` starts on a single machine, so completions are the same (on
CPUs bit for bit), whichever replica answers. Nodes may join and leave during the stage: a new node gets replicas, and
requests of a replica that dies go to another one. The actors end with the stage's process, however it ends.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from selfimprove.core.chat import ChatFormat
from selfimprove.core.errors import UserError
from selfimprove.engines.base import EngineStats, Request
from selfimprove.engines.cluster.config import ClusterParams
from selfimprove.engines.cluster.dispatch import Dispatcher, Replica, Share
from selfimprove.engines.cluster.ray_actor import ReplicaActor
from selfimprove.engines.cluster.ray_cluster import (
    Examination,
    Node,
    SharedGpu,
    connect,
    environment_of_replicas,
    forget_gpus_of_lost_nodes,
    hold,
    kill,
    living_nodes,
    pinned,
    release,
    shared_gpu,
)
from selfimprove.engines.cluster.worker import WorkerSpec

NODE_SECONDS = 2.0
"""Interval at which the list of nodes is polled."""

FIRST_SECONDS = 20.0
"""Time limit for the first check of the nodes; nodes that take longer join later."""

WAIT_SECONDS = 60.0
"""Interval of messages while no replica is ready."""

MOST_LOST = 3
"""Limit on the replicas lost with one request, and on those that die on one node before they have loaded the model."""

_engines: list[RayEngine] = []
"""The open engines of this process."""


@dataclass(frozen=True)
class Need:
    """The resources of a node that one replica takes.

    Attributes:
        cpus, gpus: what it computes with.
        sharing: number of the stage's engines that share the cluster; a replica reserves 1 / sharing of its CPUs.
    """

    cpus: int
    gpus: int = 0
    sharing: int = 1

    @property
    def shares_gpu(self) -> bool:
        """Whether a replica shares its GPU with one replica of each other engine."""
        return self.gpus == 1 and self.sharing > 1


@dataclass(eq=False)
class _Worker(Replica):
    """An actor, its node and its number there; ``outbox``: requests for the next message to it."""

    node: Node = field(kw_only=True)
    number: int = field(kw_only=True)
    actor: Any = field(kw_only=True)
    gpu: SharedGpu | None = field(kw_only=True)
    outbox: list[tuple[int, Request | None]] = field(default_factory=list)
    seen: int = 0
    task: asyncio.Task[None] | None = None


class RayEngine(Dispatcher[_Worker]):
    """Implements ``engines.base.Engine`` over actors that each hold an engine."""

    def __init__(
        self,
        cluster: ClusterParams,
        spec: WorkerSpec,
        share: Share,
        chat: ChatFormat,
        need: Need,
        *,
        name: str,
        remedy: str,
    ) -> None:
        """Join the cluster; the actors start with the first request.

        Args:
            spec, share: of each replica.
            name: the engine's name; ``remedy``: the params to lower if memory runs out. Both are for messages.

        Raises:
            UserError: there is no cluster, or no node has room for a replica.
        """
        super().__init__(share, chat)
        self._ray = connect(cluster)
        self._spec, self._need, self._name, self._remedy = spec, need, name, remedy
        self._most, self._root = cluster.replicas, Path.cwd()
        self._examination = Examination(self._ray, self._root)
        self._part = sum(engine._need.sharing > 1 for engine in _engines)
        self._starting: list[_Worker] = []
        self._ready: list[_Worker] = []
        self._began: float | None = None
        self._opening: asyncio.TimerHandle | None = None
        self._opened = False
        self._known: list[str] = []
        self._refused: dict[str, str] = {}
        self._deaths: Counter[str] = Counter()
        self._gone: list[tuple[str, EngineStats]] = []
        self._again = self._losses = 0
        self._manager: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        _engines.append(self)
        hold()
        try:
            self._check_room(living_nodes(self._ray))
        except UserError:
            self._leave()
            raise

    async def close(self) -> None:
        """End the actors; waiting calls are cancelled."""
        self._cancel_all()
        workers = [*self._workers, *self._ready, *self._starting]
        if self._opening is not None:
            self._opening.cancel()
        tasks = [task for task in (self._manager, *(worker.task for worker in workers)) if task is not None]
        for task in tasks:
            task.cancel()
        with suppress(RuntimeError):  # tasks of an event loop that has ended
            await asyncio.gather(*tasks, return_exceptions=True)
        for worker in workers:
            kill(self._ray, worker.actor)
        if self.requests_by_node() or self._losses:
            self._say(self._summary())
        self._leave()

    def requests_by_node(self) -> dict[str, int]:
        """Number of requests answered on each node, by ``Node.place``."""
        counted: Counter[str] = Counter()
        for place, stats in [*((one.node.place, one.stats) for one in self._workers), *self._gone]:
            counted[place] += stats.requests
        return dict(counted)

    # Dispatcher's hooks

    def _counted(self) -> list[EngineStats]:
        return [*super()._counted(), *(stats for _, stats in self._gone)]

    def _listen(self) -> None:
        if self._manager is None:
            assert self._loop is not None
            self._manager = self._loop.create_task(self._manage())

    def _rest(self) -> None:
        """The replicas stay loaded for the next request."""

    def _post(self, worker: _Worker, number: int, request: Request | None) -> None:
        worker.outbox.append((number, request))
        if len(worker.outbox) == 1:  # requests posted in the same event-loop step share one message
            assert self._loop is not None
            self._loop.call_soon(self._flush, worker)

    def _flush(self, worker: _Worker) -> None:
        messages, worker.outbox = worker.outbox, []
        worker.actor.take.remote(messages)  # a dead actor is detected in _serve

    # Replica lifecycle

    async def _manage(self) -> None:
        """Keep every node supplied with replicas as nodes join and replicas die."""
        waited = 0.0
        try:
            while self._error is None:
                nodes = await _to_its_end(living_nodes, self._ray)
                forget_gpus_of_lost_nodes(self._ray, nodes)
                await self._admit(nodes)
                self._place([node for node in nodes if node.id in self._known and node.id not in self._refused])
                waited = 0.0 if self._workers else waited + NODE_SECONDS
                if waited > WAIT_SECONDS:
                    waited = 0.0
                    self._say(
                        "no replica is ready; waiting for free resources on the cluster (`ray status` shows the usage)"
                    )
                self._changed.clear()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), NODE_SECONDS)
        except Exception as error:
            self._fail(error)

    async def _admit(self, nodes: Sequence[Node]) -> None:
        """Check new nodes. A faulty node is an error at the start; later it is only excluded."""
        first, new = not self._known, [node for node in nodes if node.id not in self._known]
        if not new:
            return
        seconds = FIRST_SECONDS if first else NODE_SECONDS
        found = await _to_its_end(self._examination.faults, new, seconds)
        faults = {node: sentence for node, sentence in found.items() if sentence is not None}
        if first and faults:
            raise UserError(f"run.cluster: {'; '.join(dict.fromkeys(faults.values()))}.")
        self._known += [node.id for node in new if node.id in found]
        for sentence in dict.fromkeys(faults.values()):
            self._say(f"{sentence}; the node is not used")
        self._refused |= faults

    def _place(self, nodes: Sequence[Node]) -> None:
        """Start the missing replicas."""
        here = {(worker.node.id, worker.number) for worker in (*self._workers, *self._ready, *self._starting)}
        self._began = self._began or time.monotonic()
        for node, number in self._units(nodes):
            if (node.id, number) in here or (self._most is not None and len(here) >= self._most):
                continue
            here.add((node.id, number))
            need, gpu = self._need, None
            if need.shares_gpu:
                gpu = shared_gpu(node, number, need.cpus)
                actor_class = gpu.place(self._ray, ReplicaActor, 1 / need.sharing)
            else:
                slots = {"num_cpus": need.cpus / need.sharing, "num_gpus": need.gpus}
                actor_class = pinned(self._ray.remote(ReplicaActor), node, **slots)
            worker = _Worker(node=node, number=number, actor=actor_class.remote(str(self._root)), gpu=gpu)
            self._starting.append(worker)
            worker.task = asyncio.create_task(self._serve(worker))

    def _units(self, nodes: Sequence[Node]) -> list[tuple[Node, int]]:
        """Each replica's node and number, round-robin over the nodes, so that a limit leaves no node empty."""
        need = self._need
        order = sorted(nodes, key=lambda node: self._known.index(node.id))  # new nodes come last
        rooms = {node.id: node.room(need.cpus, need.gpus) for node in order}
        turns = range(max(rooms.values(), default=0))
        units = [(node, turn) for turn in turns for node in order if rooms[node.id] > turn]
        if need.gpus > 1:  # Ray reserves whole GPUs then: the engines divide them among themselves
            units = units[self._part :: need.sharing]
        return units[: self._most]

    async def _serve(self, worker: _Worker) -> None:
        """Load one replica's model, then read its answers until it dies."""
        environment = environment_of_replicas(self._spec.cpus)
        try:
            async with worker.gpu.loading if worker.gpu else nullcontext():
                outcome, text = await worker.actor.load.remote(self._spec, environment)
            if outcome != "ready" and (self._workers or self._ready):  # such as memory of a dead replica, not yet free
                self._say(f"a replica on node {worker.node.place} could not start ({text.strip().splitlines()[-1]})")
                self._lose(worker, RuntimeError(outcome))
                return
            if outcome == "refused":
                raise UserError(f"node {worker.node.host}: {text}" if len(self._known) > 1 else text)
            if outcome == "failed":
                raise RuntimeError(f"a replica on node {worker.node.host} could not start:\n{text}")
            self._join(worker)
            while True:
                seen, answers, stats = await worker.actor.answers.remote(worker.seen)
                worker.seen, worker.stats = seen, stats
                for number, outcome, value in answers:
                    self._answered(worker, number, outcome, value)
        except self._ray.exceptions.RayError as error:
            self._lose(worker, error)
        except Exception as error:
            self._fail(error)

    def _join(self, worker: _Worker) -> None:
        """Handle a replica that has loaded the model.

        The first ready replica waits for those still loading, for at most the time that its own start took. Otherwise
        the fastest one would answer all requests of a short stage, and be the home replica of all tasks.
        """
        self._starting.remove(worker)
        self._ready.append(worker)
        self._deaths[worker.node.id] = 0
        if self._opened or not self._starting:
            self._open()
        elif self._opening is None:
            assert self._loop is not None
            assert self._began is not None
            self._opening = self._loop.call_later(time.monotonic() - self._began, self._open)

    def _open(self) -> None:
        """Open the ready replicas for requests."""
        self._opened = True
        opened, self._ready = self._ready, []
        self._workers += opened
        waiting = list(self._homeless)
        self._homeless.clear()
        self._waiting -= len(waiting)
        for call in waiting:
            self._enqueue(call)
        for worker in opened:
            self._feed(worker)

    def _lose(self, worker: _Worker, error: Exception) -> None:
        """Handle the death of a replica, alone or with its node: requeue its unanswered requests."""
        kill(self._ray, worker.actor)
        self._losses += 1
        reason = type(error).__name__
        if worker in self._starting or worker in self._ready:
            (self._starting if worker in self._starting else self._ready).remove(worker)
            self._deaths[worker.node.id] += 1
            if self._deaths[worker.node.id] >= MOST_LOST:
                self._refuse(worker.node, reason)
            if self._ready and not self._starting:
                self._open()
        else:
            self._workers.remove(worker)
            self._gone.append((worker.node.place, worker.stats))
            asked = [call for holder, call in self._asked.values() if holder is worker]
            for call in asked:
                del self._asked[call.number]
            again = [call for call in asked if call.number in self._calls and not call.future.done()]
            self._again += len(again)
            for call in again:
                call.lost += 1
                if call.lost >= MOST_LOST:
                    self._fail(self._death(f"{MOST_LOST} replicas died while answering {call.request.seed}"))
                    return
            self._say(f"a replica on node {worker.node.place} was lost ({reason}); {len(again)} requests are retried")
            self._waiting -= len(worker.queue)
            for call in reversed([*again, *worker.queue]):
                self._enqueue(call, first=True)
        self._changed.set()

    def _refuse(self, node: Node, reason: str) -> None:
        """Exclude a node on which replicas die while loading."""
        self._refused[node.id] = reason
        if not self._workers and not self._ready and not self._starting:
            self._fail(self._death(f"{MOST_LOST} replicas on node {node.host} died while loading ({reason})"))

    def _death(self, how: str) -> UserError:
        return UserError(
            f"engine {self._name}: {how}; if memory ran out, lower {self._remedy}, and run again: finished work is "
            "kept."
        )

    def _check_room(self, nodes: Sequence[Node]) -> None:
        need = self._need
        widths = {one._need.gpus for one in _engines if one._need.sharing > 1 and one._need.gpus}
        if len(widths) > 1:  # Ray would reserve all GPUs for the narrower one, whose replicas each share one
            raise UserError(
                f"engine {self._name}: engines that share a cluster's GPUs need the same number of them for a replica, "
                f"but these have {' and '.join(map(str, sorted(widths)))}; set the same tensor_parallel (engine "
                "transformers: 1), or serve one of the models with `vllm serve` and use engine openai."
            )
        if sum(node.room(need.cpus, need.gpus) for node in nodes) > (self._part if need.gpus > 1 else 0):
            return
        wanted = f"{need.gpus} GPUs (tensor_parallel)" if need.gpus else f"{need.cpus} CPUs (threads / replicas)"
        whole = f" for each of its {need.sharing} engines" if need.gpus > 1 and need.sharing > 1 else ""
        raise UserError(
            f"engine {self._name}: a replica needs {wanted} on one node{whole}, which the cluster does not have: "
            f"{'; '.join(map(str, nodes)) or 'it has no node'}. Lower the needs of a replica, or add nodes."
        )

    def _leave(self) -> None:
        _engines.remove(self)
        release(self._ray)

    def _summary(self) -> str:
        answered = ", ".join(f"{count} on {place}" for place, count in sorted(self.requests_by_node().items()))
        lost = f"; {self._losses} replicas lost, {self._again} requests retried" if self._losses else ""
        return f"requests answered: {answered or 'none'}{lost}"

    def _say(self, text: str) -> None:
        print(f"cluster, engine {self._name}: {text}", file=sys.stderr, flush=True)


async def _to_its_end(call: Callable[..., Any], *arguments: Any) -> Any:
    """Run ``call`` in a thread and return its result; if cancelled, wait until the call has ended.

    A call that still waits for Ray when this process leaves the cluster would never return.
    """
    running = asyncio.ensure_future(asyncio.to_thread(call, *arguments))
    try:
        return await asyncio.shield(running)
    finally:
        await asyncio.wait([running])
