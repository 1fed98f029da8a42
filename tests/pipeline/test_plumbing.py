"""Modules declared as plumbing change no result: without them, stages publish the same bytes.

Each module of ``closure.PLUMBING`` is replaced by the minimum that other modules need: nothing is displayed, logged,
timed or locked, and no checkpoint is written by a timer or on a signal. If a result depended on such a module, its
stage would publish other bytes here or fail. The module would then not be plumbing and must leave the list.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from selfimprove.pipeline.closure import PLUMBING
from tests.pipeline.workbench import Forks, Place, Workbench, copy_code, published

pytestmark = pytest.mark.slow

NOTHING: dict[str, str] = {
    "selfimprove/core/tracking.py": """
        from selfimprove.core.params import Section
        class TrackingParams(Section):
            report_to: str = "none"
        class Tracker:
            def __init__(self, *_): pass
            def log(self, *_): pass
            def close(self): pass
    """,
    "selfimprove/engines/progress.py": """
        class StageProgress:
            def __init__(self, *_, **__): pass
            def advance(self, units=1): pass
            def reach(self, *_, **__): pass
            def note(self, text): pass
            def watch(self, engines): pass
            def __enter__(self): return self
            def __exit__(self, *_): pass
    """,
    "selfimprove/pipeline/closure.py": """
        from pathlib import Path
        MANIFESTS = ENVIRONMENT = Path("data/code")
        manifests, scripts = dict, list
        def manifest(script, root=Path()): return ""
    """,
    "selfimprove/pipeline/dvc_files.py": "def keep(): pass",
    "selfimprove/pipeline/forks.py": "",
    "selfimprove/pipeline/forward.py": "def forward(): pass",
    "selfimprove/pipeline/installed.py": 'def installed(): return ""',
    "selfimprove/pipeline/lock.py": """
        from contextlib import nullcontext
        def stage_lock(folder, stage): return nullcontext()
    """,
    "selfimprove/pipeline/overall.py": "",
    "selfimprove/pipeline/recorded.py": """
        def check_unedited(stage, values): pass
        def of_method(stage, method): return False
    """,
    "selfimprove/pipeline/stage_log.py": """
        from contextlib import nullcontext
        def kept_log(stage): return nullcontext()
    """,
    "selfimprove/pipeline/warm.py": "from time import time as started",
    "selfimprove/training/progress.py": "Progress = object",
    "stages/__init__.py": "",
    "selfimprove/training/stopping.py": """
        from contextlib import nullcontext
        SAVE, END, INTERRUPTED, SAVING_SECONDS = 1, 2, 130, 60
        def ask(number, frame=None): pass
        def asked(): return False
        def signals_ask(): return nullcontext()
        def sigterm_interrupts(): return nullcontext()
        class SaveClock:
            def wish(self, *, first): return 0
            def saving(self): return nullcontext()
    """,
}
FORK: dict[str, Any] = {"launcher": {"kind": "fork", "processes": 2}}
RUNS: dict[str, list[tuple[Place, dict[str, Any] | None]]] = {
    "rise": [
        (("rise.generate", "iter1"), None),
        (("rise.finetune", "base"), None),
        (("rise.finetune", "base"), {"rise": {"rows": {"base": {"train": FORK}}}}),
        (("rise.evaluate", "base"), None),
    ],
    "agent_r": [(("agent_r.generate", "iter1"), None), (("agent_r.convert", "iter2"), None)],
    "reflect_rl": [(("reflect_rl.generate", ""), None), (("reflect_rl.reinforce", "reflect_rl"), None)],
    "spin": [(("spin.generate", "iter0"), None), (("spin.finetune", "iter0"), None)],
}


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """A process that forks stages in which all plumbing is replaced."""
    code = copy_code(tmp_path_factory.mktemp("bare"))
    replace_plumbing(code)
    with Forks(code) as forks:
        yield forks


def replace_plumbing(folder: Path) -> None:
    for file, text in NOTHING.items():
        lines = [line.removeprefix("        ") for line in text.splitlines()]
        (folder / file).write_text("\n".join(lines) + "\n")


def test_every_declared_module_is_replaced_here() -> None:
    assert {Path(file) for file in NOTHING} == PLUMBING


@pytest.mark.parametrize("method", RUNS)
def test_without_the_plumbing_stages_publish_the_same_bytes(
    method: str, forks: Forks, bare: Forks, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    fixtures = {"rise": "bench", "agent_r": "agent_bench", "reflect_rl": "reflect_bench", "spin": "spin_bench"}
    bench: Workbench = request.getfixturevalue(fixtures[method])
    for number, (place, overlay) in enumerate(RUNS[method]):
        found = {}
        for name, runner in (("whole", forks), ("bare", bare)):
            folder = bench.copy(tmp_path / f"{name}-{number}", overlay)
            if runner is bare:
                replace_plumbing(folder)  # for the processes that a stage starts
            ran = runner.run(folder, *place)
            assert ran.code == 0, ran.stderr
            found[name] = published(folder)
            assert (folder / ".scratch/locks").exists() == (runner is forks)  # the plumbing is indeed missing
        assert found["bare"] == found["whole"]
