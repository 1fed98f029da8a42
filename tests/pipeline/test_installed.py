"""The identity of a run lists the packages that are actually installed, and only those that its result depends on."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from selfimprove.pipeline.installed import LOCK, installed

ROOT = Path(__file__).resolve().parents[2]


def site(folder: Path, *distributions: str) -> str:
    """A site-packages folder with these distributions (name-version, as in folder names)."""
    for name in distributions:
        (folder / f"{name}.dist-info").mkdir(parents=True)
    return str(folder)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository whose lock contains four packages; only what a test puts on the path is installed."""
    (tmp_path / LOCK).parent.mkdir()
    (tmp_path / LOCK).write_text(
        "numpy==2.3.5 \\\n    --hash=sha256:0\npystemmer==3.0.0 \\\n    --hash=sha256:0\n"
        "ruamel-yaml-clib==0.2.15 \\\n    --hash=sha256:0\nzc-lockfile==4.0 \\\n    --hash=sha256:0\n"
    )
    monkeypatch.setattr("sys.path", [str(tmp_path / "no folder")])
    return tmp_path


def put(monkeypatch: pytest.MonkeyPatch, *folders: str) -> None:
    monkeypatch.setattr("sys.path", list(folders))


def test_versions_are_the_installed_ones_even_if_the_lock_differs(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, site(root / "a", "numpy-2.4.0", "PyStemmer-3.0.0", "ruamel.yaml.clib-0.2.15"))
    assert installed(root) == "numpy==2.4.0\npystemmer==3.0.0\nruamel-yaml-clib==0.2.15\n"


def test_optional_packages_and_the_build_of_torch_are_ignored(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, site(root / "cpu", "numpy-2.3.5", "torch-2.13.0+cpu"))
    here = installed(root)
    put(monkeypatch, site(root / "gpu", "numpy-2.3.5", "torch-2.13.0+cu130", "bitsandbytes-0.50.2", "scienceworld-1.2"))
    assert installed(root) == here == "numpy==2.3.5\ntorch==2.13.0\n"


def test_of_two_installed_versions_the_one_that_python_imports_is_listed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(monkeypatch, site(root / "first", "numpy-2.4.0"), site(root / "second", "numpy-2.3.5", "zc_lockfile-4.0"))
    assert installed(root) == "numpy==2.4.0\nzc-lockfile==4.0\n"


def brought(requirements: Iterable[str]) -> set[str]:
    """The installed packages among these requirements and their dependencies, according to package metadata."""
    found: set[tuple[str, str]] = set()
    waiting = [(Requirement(text), "") for text in requirements]
    while waiting:
        one, extra = waiting.pop()
        if one.marker and not one.marker.evaluate({"extra": extra}):
            continue
        for wanted in ("", *one.extras):
            name = canonicalize_name(one.name)
            if (name, wanted) not in found:
                try:
                    inner = requires(name) or []
                except PackageNotFoundError:
                    continue
                found.add((name, wanted))
                waiting += [(Requirement(text), wanted) for text in inner]
    return {name for name, _ in found}


def test_packages_that_only_development_tools_require_are_not_listed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    named = {line.partition("==")[0] for line in installed(ROOT).splitlines()}
    assert named == brought(project["project"]["dependencies"])
    tools = brought(project["dependency-groups"]["dev"]) - named
    assert {"ruff", "mypy", "pytest", "hypothesis", "import-linter"} <= tools


def test_the_versions_of_all_locked_packages_are_those_in_python_s_own_metadata() -> None:
    names = sorted({*re.findall(r"(?m)^([^\s=]+)==", (ROOT / LOCK).read_text()), "torch"})
    lines = []
    for name in names:
        try:
            lines.append(f"{name}=={version(name).partition('+')[0]}\n")
        except PackageNotFoundError:
            continue
    assert len(lines) > 100
    assert installed(ROOT) == "".join(lines)


def test_a_built_package_contains_every_file_that_its_code_reads() -> None:
    """Worked episodes, templates and recipes, which a build leaves out unless pyproject.toml names them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    package = ROOT / "selfimprove"
    built = {file for pattern in project["tool"]["setuptools"]["package-data"]["*"] for file in package.glob(pattern)}
    read = {file for file in package.rglob("*") if file.is_file() and file.suffix not in (".py", ".pyc")}
    assert package / "methods/spin/few_shot/hotpotqa.txt" in read
    assert read <= built
