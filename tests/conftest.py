"""What several test files share: one process that forks stages, and a workbench for each method."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from selfimprove.models import merging
from tests.pipeline.workbench import Forks, Workbench, copy_code

pytest_plugins = ["tests.support.examples"]

gc.disable()  # a collection would look through what is being imported, again and again

# A shell's background job ignores Ctrl-C, and so would every process that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# No test depends on how fast the machine is: a busy one would fail those of hypothesis, at 200 ms an example.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first: workers take file after file, and would wait for a long one that came last."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_collection_finish() -> None:
    """What is imported by now stays; no collection looks through it, and no fork copies it."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def merged_models_of_tests_lie_apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests leave the checkout's ``.scratch/merged`` alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merging, "STORE", tmp_path_factory.mktemp("merged"))
        yield


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Torch and all else imported once a session (some ten seconds)."""
    with Forks(copy_code(tmp_path_factory.mktemp("forks"))) as forks:
        yield forks


@pytest.fixture(scope="session")
def bench(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Workbench:
    """RISE's first stages run: a tokenizer, a model, its first SFT."""
    return Workbench(copy_code(tmp_path_factory.mktemp("bench")), forks)


@pytest.fixture(scope="session")
def rise_bench(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Workbench:
    """RISE's first stages run, and the first collection."""
    made = Workbench(copy_code(tmp_path_factory.mktemp("rise_bench")), forks)
    made.done(made.folder, "rise.generate", "iter1")
    return made


@pytest.fixture(scope="session")
def agent_bench(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Workbench:
    """Agent-R's first stages run: those, and the trees that the expert searched."""
    return Workbench(copy_code(tmp_path_factory.mktemp("agent_bench")), forks, "agent_r")


@pytest.fixture(scope="session")
def reflect_bench(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Workbench:
    """Reflect-RL's first stages run: splits, trajectories, the sets, a reflection model and a policy."""
    return Workbench(copy_code(tmp_path_factory.mktemp("reflect_bench")), forks, "reflect_rl")


@pytest.fixture(scope="session")
def spin_bench(forks: Forks, tmp_path_factory: pytest.TempPathFactory) -> Workbench:
    """SPIN's first stages run: a warm start, its episodes, the first iteration's pairs."""
    return Workbench(copy_code(tmp_path_factory.mktemp("spin_bench")), forks, "spin")
