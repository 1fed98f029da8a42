"""Tree search gives the same tree under concurrency, replay and interruption."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from selfimprove.core.journal import Journal
from selfimprove.core.records import dump_line
from selfimprove.engines.config import TransformersEngineConfig
from selfimprove.engines.cpu.engine import TransformersEngine
from selfimprove.engines.episodes import play_all
from selfimprove.engines.journal import JournaledEngine
from selfimprove.envs.interface import EmbeddedWorld
from selfimprove.envs.replay import ReplayWorld
from selfimprove.methods.agent_r.search import search
from selfimprove.methods.agent_r.tree import Tree
from tests.methods.agent_r.corridor import Corridor
from tests.methods.agent_r.searching import FAR, NEAR, Script, grow, params
from tests.support.original_search import OneByOne, Rebuilt
from tests.support.tiny import make_tiny_model

WIDE = params(max_depth=2, dives=2, n_gen=3, max_tokens=6)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("agent_r") / "model", context=512)


def engine_of(folder: Path) -> TransformersEngine:
    cfg = TransformersEngineConfig(engine="transformers", slots=16, context=512, prefill_rows=4)
    return TransformersEngine(cfg, folder, threads=1)


def forest(engine: Any, tasks: Any, *, concurrency: Any, world: Any = None) -> list[Tree]:
    world = world or EmbeddedWorld(Corridor())
    one = lambda task: search(task, world, engine, WIDE, 3)  # noqa: E731
    return list(asyncio.run(play_all(tasks, one, concurrency=concurrency)))


def test_a_tree_does_not_depend_on_other_searches(folder: Path) -> None:
    alone = forest(engine_of(folder), range(3), concurrency=1)
    crowded = forest(engine_of(folder), [*range(20, 25), *range(2, -1, -1), *range(3, 20)], concurrency=50)
    assert [dump_line(tree) for tree in alone] == [dump_line(tree) for tree in crowded[7:4:-1]]
    assert len({tree.nodes[1].reply for tree in crowded}) > 20  # each task has its own noise
    assert any(tree.nodes[1].token_ids for tree in alone)


class Copy:
    """A live copy of the corridor, which can only continue from its current state."""

    def __init__(self) -> None:
        self.env = Corridor()

    async def reset(self, task_id: Any) -> Any:
        await asyncio.sleep(0)
        return self.env.reset(task_id)

    async def step(self, action: Any) -> Any:
        await asyncio.sleep(0)
        return self.env.step(action)

    async def close(self) -> None:
        pass


def replaying(slots: int) -> ReplayWorld:
    async def make() -> Copy:
        return Copy()

    return ReplayWorld(Corridor.name, Corridor.instruction, make, slots)


@pytest.mark.parametrize("slots", [1, 5])
def test_replayed_worlds_give_the_same_trees(folder: Path, slots: int) -> None:
    world = replaying(slots)
    snapshots = forest(engine_of(folder), range(6), concurrency=6)
    assert [dump_line(tree) for tree in forest(engine_of(folder), range(6), concurrency=6, world=world)] == [
        dump_line(tree) for tree in snapshots
    ]
    assert (world.stats.diverged, world.stats.failures) == (0, 0)
    assert world.stats.replayed > 0
    deep = params(dives=6, max_depth=6, n_gen=4)
    for task in (NEAR, FAR):
        assert asyncio.run(search(task, replaying(slots), Script(), deep, 5)) == grow(task, cfg=deep, seed=5)


def test_the_benchmark_s_sequential_search_grows_the_same_trees() -> None:
    """One sample at a time, with the environment rebuilt for each: the baseline of ``bench.search``."""
    for task in (NEAR, FAR):
        env, actor = Corridor(), Script()
        tree = asyncio.run(search(task, Rebuilt(env), OneByOne(actor), params(dives=4), 2))
        assert tree == grow(task, cfg=params(dives=4), seed=2)
        assert {request.n for request in actor.asked} == {1}
        assert env.resets == 1 + sum(node.action != "wait" for node in tree.nodes[1:])
        assert env.steps > len(tree.nodes)


def test_a_killed_search_resumes_to_the_same_tree(folder: Path, tmp_path: Path) -> None:
    whole = tmp_path / "whole.jsonl"
    with Journal(whole) as journal:
        trees = forest(JournaledEngine(engine_of(folder), journal, "actor"), range(4), concurrency=4)
    lines = whole.read_bytes()
    for attempt in range(2):
        cut = tmp_path / f"cut{attempt}.jsonl"
        cut.write_bytes(lines[: random.Random(attempt).randrange(len(lines))])  # cut at any byte
        with Journal(cut) as journal:
            engine, resumed = engine_of(folder), len(journal)
            again = forest(JournaledEngine(engine, journal, "actor"), range(4), concurrency=2)
            assert engine.stats.requests == lines.count(b"\n") - resumed
        assert [dump_line(tree) for tree in again] == [dump_line(tree) for tree in trees]


def test_a_node_s_noise_depends_on_its_replies_not_on_the_order_of_creation() -> None:
    keys, places = dict[Any, Any](), dict[Any, Any]()
    for exploration in (0.0, 5.0):
        actor = Script()
        tree = grow(FAR, actor, params(dives=8, max_depth=3, exploration=exploration))
        for i in range(len(tree.nodes)):
            places.setdefault(tuple(m.content for m in tree.conversation(i)), set()).add(i)
        for request in actor.asked:
            keys.setdefault(tuple(m.content for m in request.messages), set()).add(request.seed)
    moved = [conversation for conversation in keys if len(places[conversation]) == 2]
    assert len(moved) > 3  # the same nodes, created in another order
    assert all(len(each) == 1 for each in keys.values())
    assert len(set.union(*keys.values())) == len(keys)
