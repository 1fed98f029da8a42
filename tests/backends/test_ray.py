"""A real Ray cluster of two nodes on this machine: the bytes of a run without it, whatever dies or joins meanwhile."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from selfimprove.core.errors import UserError
from selfimprove.core.records import Message
from selfimprove.core.seeds import SeedKey
from selfimprove.engines.base import Completion, Engine, Request
from selfimprove.engines.cluster.config import ClusterParams
from selfimprove.engines.cluster.ray_cluster import connect
from selfimprove.engines.cluster.ray_replicas import RayEngine
from selfimprove.engines.cluster.replicas import replicated_transformers
from selfimprove.engines.config import TransformersEngineConfig, VllmEngineConfig
from selfimprove.engines.factory import make_engine
from selfimprove.training import ray_nodes
from selfimprove.training.config import FinetuneParams, LauncherConfig
from tests.pipeline.workbench import Workbench, kept_by, killed, published
from tests.support.nodes_trainer import Training
from tests.support.repo_copy import copy_repo, run
from tests.support.tiny import make_tiny_model

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

pytestmark = [pytest.mark.backend, pytest.mark.timeout(900)]

NODE = {"num_cpus": 1, "object_store_memory": 80 << 20}
SIZES = {"context": 192, "prefill_rows": 4, "prefill_block": 16, "replicas": 2, "slots": 16}
WAIT = 120.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A head and one more node, with one CPU each."""
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}  # else 15: starved on a busy machine
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    cluster.add_node(**NODE)
    yield cluster
    cluster.shutdown()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "model", heads=4, kv_heads=2)


def config(**changes: object) -> TransformersEngineConfig:
    return TransformersEngineConfig.model_validate({"engine": "transformers", **SIZES, **changes})


def on(cluster: Cluster, folder: Path, *, sharing: int = 1, threads: int = 2, **changes: Any) -> RayEngine:
    """An engine there; by default two replicas of 8 slots and one thread."""
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


async def answers(engine: Engine, *, after: int = 0, do: Callable[[], None] | None = None) -> list[list[Completion]]:
    """The answers of all requests; ``do`` is called once ``after`` of them have come."""
    came = 0

    async def one(request: Request) -> list[Completion]:
        nonlocal came
        completions = await engine.generate(request)
        came += 1
        if came == after and do:
            do()
        return completions

    try:
        return await asyncio.gather(*map(one, REQUESTS))
    finally:
        await engine.close()


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[list[Completion]]:
    """What two processes on this machine answer."""
    return asyncio.run(answers(replicated_transformers(config(), folder, threads=2, start="spawn")))


def processes_of(actor: str) -> list[psutil.Process]:
    """The processes of this cluster's actors of a class."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if process.cmdline()[:1] and process.cmdline()[0].startswith(f"ray::{actor}"):
                found.append(process)
    return found


def actors() -> list[psutil.Process]:
    """The replicas' processes."""
    return processes_of("ReplicaActor")


def wait_until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.2)


# --- the same completions --------------------------------------------------------------------------------------------


def test_replicas_on_two_nodes_give_the_bits_of_two_processes_here(
    cluster: Cluster, folder: Path, expected: list[list[Completion]], capfd: pytest.CaptureFixture[str]
) -> None:
    engine = on(cluster, folder)
    assert asyncio.run(answers(engine)) == expected
    counted = engine.requests_by_node()
    assert len(counted) == 2
    assert min(counted.values()) > 0
    assert sum(counted.values()) == engine.stats.requests == len(REQUESTS)
    assert "requests answered" in capfd.readouterr().err
    wait_until(lambda: not actors())  # none is left


@pytest.mark.parametrize("after", [1, 100, 280])
def test_a_killed_replica_costs_only_what_it_was_asked(
    cluster: Cluster, folder: Path, expected: list[list[Completion]], capfd: pytest.CaptureFixture[str], after: int
) -> None:
    engine = on(cluster, folder)
    assert asyncio.run(answers(engine, after=after, do=lambda: actors()[0].kill())) == expected
    said = re.search(r"1 replicas lost, (\d+) requests asked again", capfd.readouterr().err)
    assert said
    assert int(said[1]) <= 8 + 4  # slots and those ahead


def test_a_lost_node_s_requests_go_to_the_others(
    cluster: Cluster, folder: Path, expected: list[list[Completion]]
) -> None:
    third = cluster.add_node(**NODE)
    engine = on(cluster, folder)
    remove = lambda: cluster.remove_node(third, allow_graceful=False)  # noqa: E731
    assert asyncio.run(answers(engine, after=60, do=remove)) == expected


def test_a_node_that_joins_late_gets_its_share(cluster: Cluster, folder: Path) -> None:
    late: list[Any] = []

    async def two_rounds() -> RayEngine:
        engine = on(cluster, folder, most=None)
        for request in REQUESTS[:20]:
            await engine.generate(request)
        assert len(engine.requests_by_node()) == 2
        late.append(cluster.add_node(**NODE))
        for _ in range(int(WAIT * 4)):
            await asyncio.sleep(0.25)
            if len(engine._workers) == 3:
                break
        await asyncio.gather(*map(engine.generate, REQUESTS))
        await engine.close()
        return engine

    counted = asyncio.run(two_rounds()).requests_by_node()
    cluster.remove_node(late[0])
    assert len(counted) == 3
    assert min(counted.values()) > 0


def test_two_engines_share_the_cluster_and_a_limit_on_replicas_holds(
    cluster: Cluster, folder: Path, expected: list[list[Completion]]
) -> None:
    async def both() -> tuple[RayEngine, RayEngine, Any]:
        one, other = on(cluster, folder, sharing=2), on(cluster, folder, sharing=2, most=1)
        return one, other, await asyncio.gather(answers(one), answers(other))

    one, other, answered = asyncio.run(both())
    assert list(answered) == [expected, expected]
    assert (len(one.requests_by_node()), len(other.requests_by_node())) == (2, 1)


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("127.0.0.1:1", "no Ray cluster at 127.0.0.1:1 (Connection refused); start one there with `ray start --head`"),
        ("no.such.host.invalid:6379", "no Ray cluster at no.such.host.invalid:6379"),
        ("here", "'here' is none of auto, local and host:port"),
    ],
)
def test_an_address_without_a_cluster_is_one_sentence_at_once(folder: Path, address: str, words: str) -> None:
    where = ClusterParams(kind="ray", address=address)
    with pytest.raises(UserError) as caught:
        make_engine(config(), policy_dir=folder, threads=2, expert=None, cluster=where)
    assert words in str(caught.value)


def test_no_node_with_room_for_a_replica_is_one_sentence(cluster: Cluster, folder: Path) -> None:
    with pytest.raises(UserError, match=r"needs 4 CPUs \(threads / replicas\) on one node.*: 1 CPUs, 0 GPUs; "):
        on(cluster, folder, threads=8)
    where = ClusterParams(kind="ray", address=cluster.address)
    vllm = VllmEngineConfig(engine="vllm", context=64, tensor_parallel=2)
    with pytest.raises(UserError, match=r"engine vllm: a replica needs 2 GPUs \(tensor_parallel\) on one node"):
        make_engine(vllm, policy_dir=folder, threads=2, expert=None, cluster=where)


def test_a_node_with_other_versions_is_named_at_the_start_and_left_out_later(
    cluster: Cluster,
    folder: Path,
    tmp_path: Path,
    expected: list[list[Completion]],
    capfd: pytest.CaptureFixture[str],
) -> None:
    other = tmp_path / "torch-1.2.3.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 1.2.3\n", encoding="utf-8")

    async def then_it_joins() -> Any:
        engine = on(cluster, folder)
        await engine.generate(REQUESTS[0])
        node = cluster.add_node(**NODE, env_vars={"PYTHONPATH": str(tmp_path)})
        for _ in range(int(WAIT * 4)):
            await asyncio.sleep(0.25)
            if engine._refused:
                break
        assert await answers(engine) == expected
        assert len(engine.requests_by_node()) <= 2
        return node

    node = asyncio.run(then_it_joins())
    said = capfd.readouterr().err
    assert re.search(r"node \S+ has other versions: torch 1\.2\.3 \(here 2\.\S+\); install .*left out", said)
    with pytest.raises(UserError, match=r"run\.cluster: node \S+ has other versions: torch 1\.2\.3 \(here"):
        asyncio.run(answers(on(cluster, folder)))
    cluster.remove_node(node)


# --- stages ----------------------------------------------------------------------------------------------------------

STAGES = [
    ("bench", ("rise.generate", "iter1"), ()),
    ("agent_bench", ("agent_r.generate", "iter1"), ()),
    ("agent_bench", ("agent_r.convert", "iter2"), ()),
    ("reflect_bench", ("reflect_rl.evaluate", "policy"), ()),
    ("spin_bench", ("spin.generate", "iter0"), ("data/spin/iter0", "results/spin/iter0")),
]


@pytest.mark.parametrize(("workbench", "stage", "outputs"), STAGES, ids=lambda one: "-".join(one) if one else "")
def test_a_stage_killed_on_a_cluster_goes_on_and_ends_with_the_bytes_of_one_without(
    request: pytest.FixtureRequest,
    cluster: Cluster,
    tmp_path: Path,
    workbench: str,
    stage: tuple[str, str],
    outputs: tuple[str, ...],
) -> None:
    made: Workbench = request.getfixturevalue(workbench)
    without, folder = (made.copy(tmp_path / name) for name in ("without", "with"))
    for path in outputs:
        for copy in (without, folder):
            subprocess.run(["rm", "-r", str(copy / path)], check=True)
    done = made.forks.run(without, *stage)
    assert done.code == 0, done.stderr
    count = done.log.count("journaled")

    there = {"CLUSTER": "ray", "RAY_ADDRESS": cluster.address}
    killed(made, folder, stage, env=there, kill={"at": "journal", "count": 2, "when": "torn"})
    assert kept_by(folder, stage) == 1
    killed(made, folder, stage, env=there, kill={"at": "journal", "count": count - 2, "when": "after"})
    assert kept_by(folder, stage) == count - 1
    ran = made.forks.run(folder, *stage, env=there)
    assert ran.code == 0, ran.stderr
    assert "requests answered: 1 on" in ran.stderr
    assert published(folder) == published(without)
    wait_until(lambda: not actors())


@pytest.mark.slow
@pytest.mark.timeout(2400)
def test_smoke_runs_of_all_methods_end_with_the_bytes_of_runs_without_a_cluster(
    cluster: Cluster, tmp_path: Path
) -> None:
    command = (sys.executable, "-m", "selfimprove.pipeline.warm", "dvc", "repro")
    without, there = copy_repo(tmp_path / "without"), copy_repo(tmp_path / "there")
    # As under make: Ray's environment first, then the main one, which has the command dvc.
    main = Path(str(find_spec("dvc").origin)).parents[4] / "bin"  # type: ignore[union-attr]
    path = os.pathsep.join((str(Path(sys.executable).parent), str(main), os.environ["PATH"]))
    run(without, *command, PATH=path)
    run(there, *command, CLUSTER="ray", RAY_ADDRESS=cluster.address, PATH=path)
    assert published(there) == published(without)
    assert (there / "dvc.lock").read_bytes() == (without / "dvc.lock").read_bytes()
    # Whatever a model answered was answered on the cluster.
    logs = [log.read_text(encoding="utf-8") for log in (there / ".scratch").rglob("*.log")]
    assert sum(text.count("requests answered") for text in logs) >= 4


# --- training over nodes ---------------------------------------------------------------------------------------------

STEPS = 10


def test_training_over_two_nodes_goes_on_after_a_node_is_lost_and_ends_with_the_bytes_of_two_processes_here(
    cluster: Cluster, folder: Path, dialogues: Callable[[int], list[Any]], tmp_path: Path
) -> None:
    examples = dialogues(4 * STEPS)
    here = Training(tmp_path / "here", folder, examples)
    _, losses, _ = here.end()
    cut = Training(tmp_path / "cut", folder, examples, kind="ray", address=cluster.address)
    assert cut.reach(4) == [1, 2, 3, 4]
    processes_of("TrainingNode")[-1].kill()
    steps, found, said = cut.end()
    assert "restart 1 of 1" in said
    assert steps[-1] == STEPS
    assert 1 not in steps  # it did not begin anew
    assert found == losses
    assert cut.model() == here.model()


def test_more_nodes_for_training_than_there_are_is_one_sentence(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_nodes, "ROOM_SECONDS", 1.0)
    ray = connect(ClusterParams(kind="ray", address=cluster.address))
    cfg = FinetuneParams(launcher=LauncherConfig(kind="torchrun", nodes=3))
    try:
        with pytest.raises(UserError, match=r"nodes 3 with 0 GPUs and 1 CPUs each .*, but the cluster has: .*1 CPUs"):
            ray_nodes._reserve(ray, cfg, 1)
    finally:
        ray.shutdown()
