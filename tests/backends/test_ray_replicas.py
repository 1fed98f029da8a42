"""Engines on a real two-node Ray cluster: same completions as without it, even if processes die or nodes join."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from selfimprove.core.chat import ChatFormat
from selfimprove.core.errors import UserError
from selfimprove.core.records import Message
from selfimprove.core.seeds import SeedKey
from selfimprove.engines.base import Completion, Engine, Request
from selfimprove.engines.cluster.config import ClusterParams
from selfimprove.engines.cluster.ray_replicas import Need, RayEngine
from selfimprove.engines.cluster.replicas import replicated_transformers, transformers_replica
from selfimprove.engines.config import TransformersEngineConfig, VllmEngineConfig
from selfimprove.engines.factory import make_engine
from tests.backends.ray_cluster import NODE, WAIT, actors
from tests.support.processes import wait_until
from tests.support.ray_gpus import OnlyFirst, SlowToLoad, gpu_of
from tests.support.sentences import refused_with
from tests.support.tiny import make_tiny_model

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

pytestmark = [pytest.mark.backend, pytest.mark.timeout(900)]

SIZES = {"context": 192, "prefill_rows": 4, "prefill_block": 16, "replicas": 2, "slots": 16}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "model", heads=4, kv_heads=2)


def config(**changes: object) -> TransformersEngineConfig:
    return TransformersEngineConfig.model_validate({"engine": "transformers", **SIZES, **changes})


def on(cluster: Cluster, folder: Path, *, sharing: int = 1, threads: int = 2, **changes: Any) -> RayEngine:
    """An engine on the cluster; by default, two replicas with 8 slots and one thread each."""
    where = ClusterParams(kind="ray", address=cluster.address, replicas=changes.pop("most", None))
    engine = make_engine(
        config(**changes), policy_dir=folder, threads=threads, expert=None, cluster=where, sharing=sharing
    )
    assert isinstance(engine, RayEngine)
    return engine


def ask(index: int, **changes: Any) -> Request:
    question = Message(role="user", content=f"Mia has {index} apples and buys {7 * index}. How many has she now?")
    settings: dict[str, Any] = {"seed": SeedKey(run=1, task=f"t{index % 13}", turn=index), "max_tokens": 12 + index % 9}
    return Request(messages=[question], **(settings | changes))


REQUESTS = [ask(i, n=1 + i % 3, top_p=(1.0, 0.9)[i % 2]) for i in range(300)]


async def answers(engine: Engine, *, do: Mapping[int, Callable[[], None]] | None = None) -> list[list[Completion]]:
    """The completions of all requests. ``do``: functions to call, by the number of requests completed so far."""
    came = 0

    async def one(request: Request) -> list[Completion]:
        nonlocal came
        completions = await engine.generate(request)
        came += 1
        if do and came in do:
            do[came]()
        return completions

    try:
        return await asyncio.gather(*map(one, REQUESTS))
    finally:
        await engine.close()


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[list[Completion]]:
    """The completions of two processes on this machine."""
    return asyncio.run(answers(replicated_transformers(config(), folder, threads=2, start="spawn")))


# --- the same completions --------------------------------------------------------------------------------------------


def test_replicas_on_two_nodes_give_the_same_completions_as_two_local_processes(
    cluster: Cluster, folder: Path, expected: list[list[Completion]], capfd: pytest.CaptureFixture[str]
) -> None:
    engine = on(cluster, folder)
    assert asyncio.run(answers(engine)) == expected
    counted = engine.requests_by_node()
    assert len(counted) == 2
    assert min(counted.values()) > 0
    assert sum(counted.values()) == engine.stats.requests == len(REQUESTS)
    assert "requests answered" in capfd.readouterr().err
    wait_until(lambda: not actors())  # none remains


def test_only_requests_sent_to_killed_replicas_are_retried(
    cluster: Cluster, folder: Path, expected: list[list[Completion]], capfd: pytest.CaptureFixture[str]
) -> None:
    kill = lambda: min(actors(), key=psutil.Process.create_time).kill()  # noqa: E731
    assert asyncio.run(answers(on(cluster, folder), do={1: kill, 100: kill, 280: kill})) == expected
    said = re.search(r"3 replicas lost, (\d+) requests retried", capfd.readouterr().err)
    assert said
    assert 0 < int(said[1]) <= 3 * (8 + 4)  # in slots and sent ahead


def test_a_joining_node_gets_requests_unless_its_packages_differ_and_a_lost_nodes_are_retried(
    cluster: Cluster, folder: Path, tmp_path: Path, expected: list[list[Completion]], capfd: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "torch-1.2.3.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 1.2.3\n", encoding="utf-8")

    async def come_and_go() -> RayEngine:
        engine = on(cluster, folder)
        await asyncio.gather(*map(engine.generate, REQUESTS[:20]))
        assert len(engine.requests_by_node()) == 2
        late = cluster.add_node(**NODE)
        unfit.append(cluster.add_node(**NODE, env_vars={"PYTHONPATH": str(tmp_path)}))
        for _ in range(int(WAIT * 4)):
            await asyncio.sleep(0.25)
            if len(engine._workers) == 3 and engine._refused:
                break
        assert await answers(engine, do={200: lambda: cluster.remove_node(late, allow_graceful=False)}) == expected
        return engine

    unfit: list[Any] = []
    counted = asyncio.run(come_and_go()).requests_by_node()
    assert len(counted) == 3
    assert min(counted.values()) > 0
    said = capfd.readouterr().err
    assert re.search(
        r"node \S+ has different package versions: torch 1\.2\.3 \(here 2\.\S+\); install .*not used", said
    )
    assert re.search(r"1 replicas lost, \d+ requests retried", said)
    # When an engine starts, such a node is an error.
    with pytest.raises(UserError, match=r"run\.cluster: node \S+ has different package versions: torch 1\.2\.3 \(here"):
        asyncio.run(answers(on(cluster, folder)))
    cluster.remove_node(unfit[0])


def test_two_engines_share_the_cluster_and_respect_a_limit_on_replicas(
    cluster: Cluster, folder: Path, expected: list[list[Completion]]
) -> None:
    async def both() -> tuple[RayEngine, RayEngine, Any]:
        one, other = on(cluster, folder, sharing=2), on(cluster, folder, sharing=2, most=1)
        return one, other, await asyncio.gather(answers(one), answers(other))

    one, other, answered = asyncio.run(both())
    assert list(answered) == [expected, expected]
    assert (len(one.requests_by_node()), len(other.requests_by_node())) == (2, 1)


def test_each_shared_gpu_holds_one_replica_of_each_engine_and_loads_one_at_a_time(
    cluster: Cluster, folder: Path, tmp_path: Path
) -> None:
    async def both(where: ClusterParams) -> list[list[int]]:
        spec, share = transformers_replica(config(), folder, threads=2)
        slow = replace(spec, make=SlowToLoad(spec.make, tmp_path))
        chat = ChatFormat.load(folder, None)
        engines = [RayEngine(where, slow, share, chat, Need(1, 1, 2), name=name, remedy="") for name in ("a", "b")]
        try:
            await asyncio.gather(*(engine.generate(ask(i)) for i in range(40) for engine in engines))
            while any(len(engine._workers) < 2 for engine in engines):
                await asyncio.sleep(0.1)
            return [[await one.actor.__ray_call__.remote(gpu_of) for one in engine._workers] for engine in engines]
        finally:
            for engine in engines:
                await engine.close()

    node = cluster.add_node(**{**NODE, "num_cpus": 2}, num_gpus=2)
    try:
        held = asyncio.run(both(ClusterParams(kind="ray", address=cluster.address)))
    finally:
        cluster.remove_node(node)
    assert [sorted(gpus) for gpus in held] == [[0, 1], [0, 1]]
    for gpu in (0, 1):
        marks = sorted(
            (tmp_path / f"{gpu}.log").read_text("utf-8").splitlines(), key=lambda mark: float(mark.split()[0])
        )
        assert [mark.split()[1] for mark in marks] == ["begins", "ends", "begins", "ends"]


def test_a_replica_that_cannot_be_loaded_while_another_serves_only_excludes_its_node(
    cluster: Cluster, folder: Path, expected: list[list[Completion]], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async def asked() -> list[list[Completion]]:
        spec, share = transformers_replica(config(), folder, threads=2)
        spec = replace(spec, make=OnlyFirst(spec.make, tmp_path))
        where = ClusterParams(kind="ray", address=cluster.address)
        engine = RayEngine(where, spec, share, ChatFormat.load(folder, None), Need(1), name="a", remedy="")
        try:
            first = await engine.generate(REQUESTS[0])
            while not engine._refused:
                await asyncio.sleep(0.1)
            return [first, await engine.generate(REQUESTS[1])]
        finally:
            await engine.close()

    assert asyncio.run(asked()) == expected[:2]
    assert re.search(r"a replica on node \S+ could not start \(RuntimeError: no memory\)", capfd.readouterr().err)


def test_an_engine_that_is_closed_while_nodes_are_checked_ends(cluster: Cluster, folder: Path) -> None:
    async def closed() -> None:
        engine = on(cluster, folder)
        asked = asyncio.create_task(engine.generate(ask(0)))
        while not engine._examination._asked:
            await asyncio.sleep(0)
        await engine.close()
        with suppress(asyncio.CancelledError):
            await asked

    asyncio.run(closed())  # ends when the thread that waits for the nodes has ended


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "words"),
    [
        (
            "127.0.0.1:1",
            r"at 127\.0\.0\.1:1 \(Connection refused\); start one there with `ray start --head`, or fix the",
        ),
        (
            "no.such.host.invalid:6379",
            r"no Ray cluster at no\.such\.host\.invalid:6379 \(.+\); start one there with `ray",
        ),
        ("here", r"'here' is not auto, local or host:port; fix it\.$"),
    ],
)
def test_an_address_without_a_cluster_is_reported_in_one_sentence_with_a_remedy(
    folder: Path, address: str, words: str
) -> None:
    where = ClusterParams(kind="ray", address=address)
    with refused_with(words):
        make_engine(config(), policy_dir=folder, threads=2, expert=None, cluster=where)


def test_a_replica_that_fits_on_no_node_is_reported_in_one_sentence(cluster: Cluster, folder: Path) -> None:
    with refused_with(r"needs 4 CPUs \(threads / replicas\) on one node.*: 1 CPUs, 0 GPUs; "):
        on(cluster, folder, threads=8)
    where = ClusterParams(kind="ray", address=cluster.address)
    vllm = VllmEngineConfig(engine="vllm", context=64, tensor_parallel=2)
    with refused_with(r"engine vllm: a replica needs 2 GPUs \(tensor_parallel\) on one node"):
        make_engine(vllm, policy_dir=folder, threads=2, expert=None, cluster=where)


def test_engines_of_different_widths_on_shared_gpus_are_refused_instead_of_waiting_for_each_other(
    cluster: Cluster, folder: Path
) -> None:
    async def both(where: ClusterParams) -> None:
        spec, share = transformers_replica(config(), folder, threads=2)
        chat = ChatFormat.load(folder, None)
        narrow = RayEngine(where, spec, share, chat, Need(1, 1, 2), name="narrow", remedy="")
        try:
            with refused_with(r"engine wide: .* but these have 1 and 2; set the same tensor_parallel"):
                RayEngine(where, spec, share, chat, Need(1, 2, 2), name="wide", remedy="")
        finally:
            await narrow.close()

    node = cluster.add_node(**NODE, num_gpus=4)
    try:
        asyncio.run(both(ClusterParams(kind="ray", address=cluster.address)))
    finally:
        cluster.remove_node(node)
