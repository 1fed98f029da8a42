"""dvc.yaml names every module that a stage's script imports (design §5)."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from selfimprove.pipeline.closure import ENVIRONMENT, STARTED_BY_NAME, closure, rewrite

ROOT = Path(__file__).resolve().parents[2]
STAGES = YAML(typ="safe", pure=True).load(ROOT / "dvc.yaml")["stages"]


def definition(name: str) -> dict:
    value: dict = STAGES[name]
    return value.get("do", value)


def script(name: str) -> Path:
    return Path(*definition(name)["cmd"].split()[2].split(".")).with_suffix(".py")


@pytest.mark.parametrize("name", STAGES)
def test_a_stage_s_deps_are_its_script_s_import_closure_and_the_environment(name: str) -> None:
    code = [dep for dep in definition(name)["deps"] if dep.endswith((".py", ".lock"))]
    assert code == [*closure(script(name), ROOT), ENVIRONMENT]
    assert definition(name).get("outs") or definition(name).get("metrics")  # no stage without outputs


@pytest.mark.parametrize("name", STAGES)
def test_no_output_persists_and_no_folder_of_code_is_a_dep(name: str) -> None:
    assert "persist" not in str(definition(name))
    assert not [dep for dep in definition(name)["deps"] if dep in ("selfimprove", "stages")]


def test_what_python_really_imports_is_in_the_closure() -> None:
    """The light part of a stage, imported by Python itself: no module that the closure does not name."""
    program = (
        "import sys, stages.rise.generate\n"
        "print(*(m.__file__ for n, m in sys.modules.items() if n.split('.')[0] in ('selfimprove', 'stages')))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    files = {str(Path(file).relative_to(ROOT)) for file in done.stdout.split()}
    named = {file for file in files if (ROOT / file).stat().st_size}  # empty __init__.py do not count
    assert named <= set(closure(Path("stages/rise/generate.py"), ROOT))
    assert "selfimprove/methods/rise/collect.py" in named


def test_packages_have_empty_init_files_so_that_leaving_them_out_is_right() -> None:
    for top in ("selfimprove", "stages"):
        for file in (ROOT / top).rglob("__init__.py"):
            assert not ast.parse(file.read_text()).body, file


def repository(folder: Path) -> Path:
    for path, text in {
        "stages/one.py": "from selfimprove.a import f\n",
        "selfimprove/a.py": "def f():\n    from selfimprove import b\n    import selfimprove.deep.c as c\n",
        "selfimprove/b.py": "import json\nfrom selfimprove.a import f\n",
        "selfimprove/deep/c.py": "from pathlib import Path\n",
        "selfimprove/unused.py": "",
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def test_imports_count_inside_functions_through_others_and_in_circles(tmp_path: Path) -> None:
    assert closure(Path("stages/one.py"), repository(tmp_path)) == [
        "selfimprove/a.py", "selfimprove/b.py", "selfimprove/deep/c.py", "stages/one.py",
    ]  # fmt: skip


def test_rewriting_replaces_the_lists_keeps_the_rest_and_is_stable(tmp_path: Path) -> None:
    text = (
        "stages:\n  # why\n  one:\n    cmd: python -m stages.one ${key}\n    deps:\n      - data/x\n      # code\n"
        "      - selfimprove/gone.py\n      - requirements/main.lock\n    outs: [y]\n"
    )
    fresh = rewrite(text, repository(tmp_path))
    deps = YAML(typ="safe", pure=True).load(fresh)["stages"]["one"]["deps"]
    assert deps == ["data/x", *closure(Path("stages/one.py"), tmp_path), ENVIRONMENT]
    assert "# why" in fresh
    assert rewrite(fresh, tmp_path) == fresh


@pytest.mark.parametrize("starter", STARTED_BY_NAME, ids=str)
def test_what_is_started_by_name_is_a_dep_of_whoever_starts_it(starter: Path) -> None:
    started = {str(module) for module in STARTED_BY_NAME[starter]}
    assert started <= set(closure(starter, ROOT))
    for stage in STAGES:
        if str(starter) in definition(stage)["deps"]:
            assert started <= set(definition(stage)["deps"]), stage


def test_every_module_that_a_text_names_is_declared_as_started() -> None:
    """Texts other than docstrings that name a module here are commands and configs of other processes."""
    declared = {module for modules in STARTED_BY_NAME.values() for module in modules}
    for file in [path for top in ("selfimprove", "stages") for path in (ROOT / top).rglob("*.py")]:
        tree = ast.parse(file.read_text(encoding="utf-8"))
        docstrings = {
            id(node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
                for name in re.findall(r"\b(?:selfimprove|stages)(?:\.\w+)+", node.value):
                    module = Path(*name.split(".")).with_suffix(".py")
                    if (ROOT / module).is_file() and ROOT / module != file:
                        assert module in declared, f"{file.relative_to(ROOT)}: {name}"


def test_dvc_yaml_is_up_to_date() -> None:
    text = (ROOT / "dvc.yaml").read_text()
    assert rewrite(text, ROOT) == text
