"""A real two-node Ray cluster on this machine: same bytes as without it, even if processes die or nodes join."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from selfimprove.core.chat import ChatFormat
from selfimprove.core.errors import UserError
from selfimprove.core.records import Message
from selfimprove.core.seeds import SeedKey
from selfimprove.engines.base import Completion, Engine, Request
from selfimprove.engines.cluster.config import NO_CLUSTER, ClusterParams, use
from selfimprove.engines.cluster.ray_cluster import connect, living_nodes
from selfimprove.engines.cluster.ray_replicas import Need, RayEngine
from selfimprove.engines.cluster.replicas import replicated_transformers, transformers_replica
from selfimprove.engines.config import TransformersEngineConfig, VllmEngineConfig
from selfimprove.engines.factory import make_engine
from selfimprove.envs.alfworld.env import AlfWorld
from selfimprove.envs.alfworld.hosted import HostedAlfWorldProcess
from selfimprove.envs.alfworld.process import PYTHON as ALFWORLD_PYTHON
from selfimprove.envs.alfworld.process import AlfWorldProcess
from selfimprove.envs.sciworld.env import SciWorldWorld
from selfimprove.pipeline.installed import installed
from selfimprove.training import ray_nodes
from selfimprove.training.config import FinetuneParams, LauncherConfig
from tests.pipeline.workbench import Workbench, kept_by, killed, published
from tests.support.nodes_trainer import Training
from tests.support.ray_gpus import OnlyFirst, SlowToLoad, gpu_of
from tests.support.repo_copy import ROOT, copy_repo, run
from tests.support.sentences import refused_with
from tests.support.tiny import make_tiny_model

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

pytestmark = [pytest.mark.backend, pytest.mark.timeout(900)]

NODE = {"num_cpus": 1, "object_store_memory": 80 << 20}
SIZES = {"context": 192, "prefill_rows": 4, "prefill_block": 16, "replicas": 2, "slots": 16}
WAIT = 120.0


def test_stages_have_the_same_packages_in_this_environment_as_in_the_main_one() -> None:
    program = "from selfimprove.pipeline.installed import installed; print(installed(), end='')"
    main = [str(ROOT / ".venv/bin/python"), "-c", program]
    assert installed(ROOT) == subprocess.run(main, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A head and a second node, with one CPU each."""
    # Ray's default niceness of 15 starves workers on a loaded machine.
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
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


def processes_of(actor: str) -> list[psutil.Process]:
    """The processes of the cluster's actors of one class."""
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
        plan, share = transformers_replica(config(), folder, threads=2)
        slow = replace(plan, make=SlowToLoad(plan.make, tmp_path))
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
        plan, share = transformers_replica(config(), folder, threads=2)
        plan = replace(plan, make=OnlyFirst(plan.make, tmp_path))
        where = ClusterParams(kind="ray", address=cluster.address)
        engine = RayEngine(where, plan, share, ChatFormat.load(folder, None), Need(1), name="a", remedy="")
        try:
            first = await engine.generate(REQUESTS[0])
            while not engine._refused:
                await asyncio.sleep(0.1)
            return [first, await engine.generate(REQUESTS[1])]
        finally:
            await engine.close()

    assert asyncio.run(asked()) == expected[:2]
    assert re.search(r"a replica on node \S+ could not start \(RuntimeError: no memory\)", capfd.readouterr().err)


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
        plan, share = transformers_replica(config(), folder, threads=2)
        chat = ChatFormat.load(folder, None)
        narrow = RayEngine(where, plan, share, chat, Need(1, 1, 2), name="narrow", remedy="")
        try:
            with refused_with(r"engine wide: .* but these have 1 and 2; set the same tensor_parallel"):
                RayEngine(where, plan, share, chat, Need(1, 2, 2), name="wide", remedy="")
        finally:
            await narrow.close()

    node = cluster.add_node(**NODE, num_gpus=4)
    try:
        asyncio.run(both(ClusterParams(kind="ray", address=cluster.address)))
    finally:
        cluster.remove_node(node)


@pytest.mark.skipif(os.getuid() != 0, reason="a file system of its own needs root")
def test_nodes_without_the_repository_or_with_other_code_are_reported_in_one_sentence(
    cluster: Cluster, bench: Workbench, tmp_path: Path
) -> None:
    folder, edited = bench.copy(tmp_path / "repo"), tmp_path / "edited"
    shutil.copytree(folder / "selfimprove", edited)
    (edited / "core/seeds.py").write_text("SEED = 4\n", encoding="utf-8")
    start = f"{Path(sys.executable).with_name('ray')} start --block --address={cluster.address} --num-cpus=1"
    ray = connect(ClusterParams(kind="ray", address=cluster.address))
    with ExitStack() as nodes:
        for count, mount in enumerate((f"-t tmpfs none {folder}", f"--bind {edited} {folder}/selfimprove"), start=3):
            command = f"mount {mount} && exec {start} --object-store-memory={80 << 20}"
            nodes.enter_context(node_of_its_own(command, partial(has_nodes, ray, count)))
        ray.shutdown()
        said = bench.refused(folder, "rise.generate", "iter1", env={"CLUSTER": "ray", "RAY_ADDRESS": cluster.address})
    assert re.search(rf"node \S+ has no repository at {folder}; put it on a path that all nodes share", said)
    assert re.search(rf"node \S+ has different code in {folder}/selfimprove than this machine; use one commit", said)


def has_nodes(ray: Any, count: int) -> bool:
    return len(living_nodes(ray)) == count


@contextmanager
def node_of_its_own(command: str, joined: Callable[[], bool]) -> Iterator[None]:
    """A node in its own mount namespace, restarted until it joins: Ray gives each start 30 s."""
    shell = ["unshare", "--mount", "sh", "-c", command]
    begin = lambda: subprocess.Popen(shell, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)  # noqa: E731
    node, deadline = begin(), time.monotonic() + WAIT
    try:
        while not joined():
            assert time.monotonic() < deadline
            if node.poll() is not None:
                node = begin()
            time.sleep(0.2)
        yield
    finally:
        node.terminate()
        node.wait(timeout=60)


# --- stages ----------------------------------------------------------------------------------------------------------

# Workbench, stage, outputs to remove first, and where the stage is killed: at its first journal entries or its last.
STAGES = [
    ("bench", ("rise.generate", "iter1"), (), "torn"),
    ("agent_bench", ("agent_r.generate", "iter1"), (), "late"),
    ("agent_bench", ("agent_r.convert", "iter2"), (), "late"),
    ("reflect_bench", ("reflect_rl.evaluate", "policy"), (), "torn"),
    ("spin_bench", ("spin.generate", "iter0"), ("data/spin/iter0", "results/spin/iter0"), "late"),
]


@pytest.mark.parametrize(("workbench", "stage", "outputs", "moment"), STAGES, ids=[one[1][0] for one in STAGES])
def test_a_stage_killed_on_a_cluster_resumes_and_gives_the_same_bytes_as_without_a_cluster(
    request: pytest.FixtureRequest,
    cluster: Cluster,
    tmp_path: Path,
    workbench: str,
    stage: tuple[str, str],
    outputs: tuple[str, ...],
    moment: str,
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
    kill = {"at": "journal", "count": 2, "when": "torn"}
    if moment == "late":
        kill = {"at": "journal", "count": count - 1, "when": "after"}
    killed(made, folder, stage, env=there, kill=kill)
    kept = 1 if moment == "torn" else count - 1
    assert kept_by(folder, stage) == kept
    ran = made.forks.run(folder, *stage, env=there)
    assert ran.code == 0, ran.stderr
    assert sum(int(asked) for asked in re.findall(r"(\d+) on \S+/", ran.stderr)) == count - kept
    assert published(folder) == published(without)
    wait_until(lambda: not actors())


@pytest.mark.skipif(os.environ.get("FULL") != "1", reason="a quarter of an hour: make test-backends-ray FULL=1")
@pytest.mark.timeout(7200)
def test_smoke_runs_of_all_methods_give_the_same_bytes_with_and_without_a_cluster(
    cluster: Cluster, tmp_path: Path
) -> None:
    command = (sys.executable, "-m", "selfimprove.pipeline.warm", "dvc", "repro")
    without, there = copy_repo(tmp_path / "without"), copy_repo(tmp_path / "there")
    # As under make: Ray's environment first, then the main one, which contains the dvc command.
    main = Path(str(find_spec("dvc").origin)).parents[4] / "bin"  # type: ignore[union-attr]
    path = os.pathsep.join((str(Path(sys.executable).parent), str(main), os.environ["PATH"]))
    run(without, *command, timeout=3600, PATH=path)
    run(there, *command, timeout=3600, CLUSTER="ray", RAY_ADDRESS=cluster.address, PATH=path)
    assert published(there) == published(without)
    assert (there / "dvc.lock").read_bytes() == (without / "dvc.lock").read_bytes()
    # The models' requests were answered on the cluster.
    logs = [log.read_text(encoding="utf-8") for log in (there / ".scratch").rglob("*.log")]
    assert sum(text.count("requests answered") for text in logs) >= 4


# --- heavy environments ----------------------------------------------------------------------------------------------

needs_sciworld = pytest.mark.skipif(
    find_spec("scienceworld") is None or shutil.which("java") is None, reason="needs Java and make env-sciworld"
)
needs_alfworld = pytest.mark.skipif(not ALFWORLD_PYTHON.is_file(), reason="needs make env-alfworld")
SHORT = 3245  # find-non-living-thing: nine actions
WALK = ("look around", "open door to hallway", "go to hallway", "wait1", "look around", "inventory", "go to kitchen")


@pytest.fixture
def on_cluster(cluster: Cluster) -> Iterator[ClusterParams]:
    """The cluster's params, in effect as in a stage that runs on the cluster."""
    use(there := ClusterParams(kind="ray", address=cluster.address))
    yield there
    use(NO_CLUSTER)


def walks(kill_after: int | None = None) -> tuple[list[list[Any]], SciWorldWorld]:
    """Play eight ScienceWorld games at once in two Java processes; kill one process after ``kill_after`` steps."""
    done = 0

    async def walk(world: SciWorldWorld, task: int) -> list[Any]:
        nonlocal done
        state, first = await world.reset(task)
        seen: list[Any] = [first]
        for action in WALK:
            state, step = await world.step(state, action)
            seen.append(step)
            done += 1
            if done == kill_after:
                processes_of("EnvironmentActor")[0].kill()
        return seen

    async def all_of_them() -> tuple[list[list[Any]], SciWorldWorld]:
        world = SciWorldWorld(2, map_actions=False)
        try:
            return await asyncio.gather(*(walk(world, SHORT + i) for i in range(8))), world
        finally:
            await world.close()

    return asyncio.run(all_of_them())


def calls_by_node(said: str) -> Counter[str]:
    """The number of calls answered by the actors of each node."""
    counted: Counter[str] = Counter()
    for count, place in re.findall(r"cluster, \w+: (\d+) calls on (\S+)", said):
        counted[place] += int(count)
    return counted


@needs_sciworld
def test_java_processes_run_on_both_nodes_and_episodes_of_a_killed_process_are_replayed(
    on_cluster: ClusterParams, capfd: pytest.CaptureFixture[str]
) -> None:
    use(NO_CLUSTER)
    here, _ = walks()
    use(on_cluster)
    there, world = walks(kill_after=20)
    assert there == here
    assert world.stats.failures > 0
    assert world.stats.diverged == 0
    said = capfd.readouterr().err
    assert said.count("cluster, sciworld: a process on") == 3  # two, and the killed one's replacement
    assert len(calls_by_node(said)) == 2
    assert min(calls_by_node(said).values()) > 20
    wait_until(lambda: not processes_of("EnvironmentActor"))


SCIENCE = {
    "agent_r": {
        "env": {"name": "sciworld", "jvms": 2},
        "tasks": {
            "demonstrations": 2, "judge_examples": 1, "train": 6, "dev": 1, "test": 1,
            "games": {"start": 6, "stop": 7, "variations": 300},
        },
        "iterations": {"iter2": {"generate": {"tasks": 1, "n_gen": 1, "dives": 1, "max_depth": 9}}},
    }
}  # fmt: skip


@needs_sciworld
def test_stages_playing_scienceworld_on_the_nodes_give_the_same_bytes_as_on_one_machine(
    agent_bench: Workbench, cluster: Cluster, tmp_path: Path
) -> None:
    without, there = (agent_bench.copy(tmp_path / name, SCIENCE) for name in ("without", "with"))
    env = {"CLUSTER": "ray", "RAY_ADDRESS": cluster.address}
    for stage in (("agent_r.data", ""), ("agent_r.generate", "iter2")):
        for folder, more in ((without, {}), (there, env)):
            ran = agent_bench.forks.run(folder, *stage, env=more)
            assert ran.code == 0, ran.stderr
            assert ("cluster, sciworld: a process on" in ran.stderr) == bool(more)
    assert calls_by_node(ran.stderr).total() > 10
    assert published(there) == published(without)
    assert "non-living" in (there / "data/agent_r/iter2/trees.jsonl").read_text(encoding="utf-8")


@needs_alfworld
def test_the_alfworld_process_runs_on_a_node_and_is_replaced_when_killed(on_cluster: ClusterParams) -> None:
    def play(process: AlfWorldProcess, kill: Callable[[], None] | None = None) -> list[Any]:
        game = AlfWorld(process=process)
        seen: list[Any] = [game.reset(3)]
        for place, move in enumerate(game.expert()):
            if place == 3 and kill is not None:
                kill()
            seen += [move, game.step(move.action), game.valid_actions()]
        process.close()
        return seen

    here = play(AlfWorldProcess())
    assert here[-2].done
    there = HostedAlfWorldProcess(on_cluster)
    assert play(there, lambda: processes_of("EnvironmentActor")[0].kill()) == here
    assert there.life == 2
    # The same if the process dies and its actor survives.
    assert play(there, lambda: psutil.Process(there.pid).kill()) == here
    assert there.life == 4
    wait_until(lambda: not processes_of("EnvironmentActor"))


# --- training over nodes ---------------------------------------------------------------------------------------------

STEPS = 10


def test_training_on_two_nodes_resumes_after_losing_one_and_gives_the_bytes_of_local_training(
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
    assert 1 not in steps  # it did not start over
    assert found == losses
    assert cut.model() == here.model()


def test_an_interrupted_training_on_two_nodes_writes_a_checkpoint_and_goes_on_from_it(
    cluster: Cluster, folder: Path, dialogues: Callable[[int], list[Any]], tmp_path: Path
) -> None:
    examples = dialogues(4 * STEPS)
    there = {"save_steps": 1000, "kind": "ray", "address": cluster.address}
    stopped = Training(tmp_path / "there", folder, examples, **there)
    stopped.reach(2)
    stopped.process.send_signal(signal.SIGINT)
    stopped.process.communicate(timeout=WAIT)
    assert stopped.process.returncode != 0
    wait_until(lambda: not processes_of("TrainingNode"))
    steps, _, _ = Training(tmp_path / "there", folder, examples, **there).end()
    assert steps[0] > 2
    assert steps[-1] == STEPS


def test_more_training_nodes_than_the_cluster_has_are_reported_in_one_sentence(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray_nodes, "ROOM_SECONDS", 1.0)
    ray = connect(ClusterParams(kind="ray", address=cluster.address))
    cfg = FinetuneParams(launcher=LauncherConfig(kind="torchrun", nodes=3))
    try:
        with refused_with(r"3 nodes with 0 GPUs and 1 CPUs each .*, but the cluster has: .*1 CPUs"):
            ray_nodes._reserve(ray, cfg, 1)
    finally:
        ray.shutdown()
