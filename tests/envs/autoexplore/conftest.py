"""A small repository that the tests explore, its tasks, and helpers that create others."""

from collections.abc import Callable
from pathlib import Path

import pytest

from selfimprove.envs.autoexplore.env import AutoExplore
from selfimprove.envs.autoexplore.repos import Repo
from selfimprove.envs.autoexplore.tasks import Task, optimal_path
from selfimprove.envs.interface import Step

HUB = '''"""Where events meet."""


class Hub:
    """Forwards events to subscribers. Keeps none."""

    def publish(self, event):
        for subscriber in self.subscribers:
            subscriber(event)


def replay(events, hub):
    """Publishes old events again"""
    for event in events:
        hub.publish(event)
'''
FILES = {
    "README.md": "# Eventlib\n\nForwards events.\n\n## Installing it\n\n" + "Run the usual command. " * 20,
    "core/hub.py": HUB,
    "core/deep/wire format.py": "class Wire:\n    size = 1\n" + "# bytes on the wire\n" * 20,
    "data/cities.csv": "city,year,visitors\n" + "Rome,1990,12\n" * 30,
    "settings.yaml": "retries: 3\ntimeout: 10\n" + "# how patient the hub is\n" * 20,
    "run.sh": "#!/bin/sh\nstart() {\n  echo start\n}\n" + "start\n" * 20,
}


def task_for(filename: str, question: str = "Where is it?", root: str = "eventlib", **fields: object) -> Task:
    row = {
        "question": question,
        "answer": "there",
        "optimal_path": optimal_path(filename),
        "filename": filename,
        "root": root,
        "n_level": filename.count("/"),
        "model": "template",
    }
    return Task.model_validate(row | fields)


def plant(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    """``FILES`` as a repository called eventlib."""
    return Repo.open(plant(tmp_path / "eventlib", FILES))


@pytest.fixture
def make_task() -> Callable[..., Task]:
    return task_for


@pytest.fixture
def make_folder(tmp_path: Path) -> Callable[[str, dict[str, str]], Path]:
    """(name, path -> text) -> a new folder with these files."""
    return lambda name, files: plant(tmp_path / name, files)


@pytest.fixture
def make_env(repo: Repo) -> Callable[..., AutoExplore]:
    """(options) -> an environment of three tasks."""
    tasks = [task_for("core/hub.py", "Where is the hub?"), task_for("core/deep/wire format.py"), task_for("README.md")]
    return lambda **options: AutoExplore(tasks, {"eventlib": repo}, **options)


def play(env: AutoExplore, *actions: str) -> list[Step]:
    """Act in turn."""
    return [env.step(action) for action in actions]
