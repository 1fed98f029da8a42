"""Stages, environments and trainings on a two-node Ray cluster: same bytes as without it, even if processes die."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from selfimprove.engines.cluster.config import NO_CLUSTER, ClusterParams, use
from selfimprove.engines.cluster.ray_cluster import connect
from selfimprove.envs.alfworld.env import AlfWorld
from selfimprove.envs.alfworld.hosted import HostedAlfWorldProcess
from selfimprove.envs.alfworld.process import PYTHON as ALFWORLD_PYTHON
from selfimprove.envs.alfworld.process import AlfWorldProcess
from selfimprove.envs.sciworld.env import SciWorldWorld
from selfimprove.pipeline.installed import installed
from selfimprove.training import ray_nodes
from selfimprove.training.config import FinetuneParams, LauncherConfig
from tests.backends.ray_cluster import WAIT, actors, has_nodes, node_of_its_own, processes_of
from tests.pipeline.workbench import Workbench, kept_by, killed, published
from tests.support.nodes_trainer import Training
from tests.support.processes import wait_until
from tests.support.repo_copy import ROOT, copy_repo, run
from tests.support.sentences import refused_with
from tests.support.tiny import make_tiny_model

if TYPE_CHECKING:
    from ray.cluster_utils import Cluster

pytestmark = [pytest.mark.backend, pytest.mark.timeout(900)]


def test_stages_have_the_same_packages_in_this_environment_as_in_the_main_one() -> None:
    program = "from selfimprove.pipeline.installed import installed; print(installed(), end='')"
    main = [str(ROOT / ".venv/bin/python"), "-c", program]
    assert installed(ROOT) == subprocess.run(main, cwd=ROOT, capture_output=True, text=True, check=True).stdout


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
    assert len(calls_by_node(said)) == 2  # how many calls each answered depends on the moment of the kill
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

# Progress arrives twice a second; a training must last longer than that, on fast machines too.
STEPS = 40
MANY_STEPS = 1000  # without checkpoints in between


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny") / "model", heads=4, kv_heads=2)


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
    examples = dialogues(4 * MANY_STEPS)
    there = {"save_steps": 2 * MANY_STEPS, "kind": "ray", "address": cluster.address}
    stopped = Training(tmp_path / "there", folder, examples, **there)
    stopped.reach(2)
    stopped.process.send_signal(signal.SIGINT)
    stopped.process.communicate(timeout=WAIT)
    assert stopped.process.returncode != 0
    wait_until(lambda: not processes_of("TrainingNode"))
    steps, _, _ = Training(tmp_path / "there", folder, examples, **there).end()
    assert steps[0] > 2
    assert steps[-1] == MANY_STEPS


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
