"""Fixtures shared by all tests: a process that forks stages, and a workbench for each method."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

from selfimprove.models import merging
from tests.pipeline.workbench import Forks, Workbench, copy_code

pytest_plugins = ["tests.support.examples"]

LONGEST = "test_end_to_end.py"

# Containers often forbid bytecode; then each of hundreds of processes would compile our modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Tests that save DVC experiments need an author of commits, whatever git's configuration on this machine is.
for role in ("AUTHOR", "COMMITTER"):
    os.environ.setdefault(f"GIT_{role}_NAME", "t")
    os.environ.setdefault(f"GIT_{role}_EMAIL", "t@example.org")

gc.disable()  # collections during imports would traverse all imported objects repeatedly

# In a shell's background job Ctrl-C is ignored, and every process that a test starts would inherit this.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test may depend on the machine's speed: hypothesis's default deadline is 200 ms per example.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest file first, then those with slow tests: a worker takes a file at a time and waits at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: (item.path.name != LONGEST, item.path not in slow))


def pytest_collection_finish() -> None:
    """Exempt everything imported so far from garbage collection, so that no fork copies its memory."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def merged_models_of_tests_lie_apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Store merged models in a temporary folder instead of the checkout's ``.scratch/merged``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merging, "STORE", tmp_path_factory.mktemp("merged"))
        yield


@pytest.fixture(scope="module", autouse=True)
def objects_of_earlier_files_are_not_traversed() -> Iterator[None]:
    """Exempt what a file's tests leave in memory, such as caches: each training collects garbage several times."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Undo a test's change of torch's threads: more of them than cores make small operations ten times as slow."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """A process that imports torch and everything else once per session (about ten seconds) and forks stages."""
    with Forks(copy_code(tmp_path_factory.mktemp("forks"))) as forks:
        yield forks


@pytest.fixture(scope="session")
def bench(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Workbench:
    """A workbench in which RISE's first stages have run: data, the start, and the base model's SFT."""
    return Workbench(copy_code(tmp_path_factory.mktemp("bench")), forks)


@pytest.fixture(scope="session")
def rise_bench(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Workbench:
    """A workbench in which RISE's first stages and the generate stage of ``iter1`` have run."""
    made = Workbench(copy_code(tmp_path_factory.mktemp("rise_bench")), forks)
    made.done(made.folder, "rise.generate", "iter1")
    return made


@pytest.fixture(scope="session")
def agent_bench(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Workbench:
    """A workbench in which Agent-R's first stages have run, up to the trees that the expert searched."""
    return Workbench(copy_code(tmp_path_factory.mktemp("agent_bench")), forks, "agent_r")


@pytest.fixture(scope="session")
def reflect_bench(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Workbench:
    """A workbench in which Reflect-RL's first stages have run: data, trajectories, SFT sets, reflector and policy."""
    return Workbench(copy_code(tmp_path_factory.mktemp("reflect_bench")), forks, "reflect_rl")


@pytest.fixture(scope="session")
def spin_bench(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Workbench:
    """A workbench in which SPIN's first stages have run: the warm start, its episodes, the first iteration's pairs."""
    return Workbench(copy_code(tmp_path_factory.mktemp("spin_bench")), forks, "spin")
