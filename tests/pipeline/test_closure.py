"""A stage depends on all of the code that its script imports, and on no other."""

from __future__ import annotations

import ast
import hashlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from selfimprove.pipeline.closure import (
    ENVIRONMENT,
    KNOWN,
    MANIFESTS,
    PLUMBING,
    STARTED_BY_NAME,
    manifest,
    manifests,
    program,
    scripts,
)  # fmt: skip
from selfimprove.pipeline.installed import installed

ROOT = Path(__file__).resolve().parents[2]
STAGES = YAML(typ="safe", pure=True).load(ROOT / "dvc.yaml")["stages"]


def files_of(manifest: str) -> list[str]:
    """The files listed in a manifest, without the environment."""
    return [line.split("  ")[1] for line in manifest.splitlines()][:-1]


def closure(script: Path, root: Path) -> list[str]:
    return files_of(manifest(script, root))


@pytest.fixture(scope="module")
def here() -> dict[Path, list[str]]:
    """The closures of this repository's scripts and of the modules that start others by name."""
    made = manifests([*scripts(ROOT), *STARTED_BY_NAME], ROOT)
    return {script: files_of(text) for script, text in made.items()}


def definition(name: str) -> dict:
    value: dict = STAGES[name]
    return value.get("do", value)


@pytest.mark.parametrize("name", [name for name in STAGES if name != "inputs"])
def test_a_stage_depends_on_the_manifest_of_the_script_that_it_runs(name: str) -> None:
    script = definition(name)["cmd"].split()[2].removeprefix("stages.").replace(".", "/")
    assert [dep for dep in definition(name)["deps"] if dep.startswith("data/code")] == [f"data/code/{script}.sha256"]
    assert Path("stages", f"{script}.py") in scripts(ROOT)
    assert not [dep for dep in definition(name)["deps"] if dep.endswith((".py", ".lock"))]
    assert definition(name).get("outs") or definition(name).get("metrics")  # no stage without outputs
    assert "persist" not in str(definition(name))


def test_the_inputs_stage_always_runs_and_writes_the_manifests() -> None:
    inputs = definition("inputs")
    assert inputs["always_changed"]  # no file specifies which packages are installed
    assert not inputs.get("deps")  # hashing them would be useless
    assert str(MANIFESTS) in inputs["outs"]
    assert ENVIRONMENT.is_relative_to(MANIFESTS)


def test_modules_that_python_actually_imports_are_in_the_closure(here: dict[Path, list[str]]) -> None:
    """Python imports the light part of a stage; the closure must contain every module that it loads."""
    program = (
        "import sys, stages.rise.generate\n"
        "print(*(m.__file__ for n, m in sys.modules.items() if n.split('.')[0] in ('selfimprove', 'stages')))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    files = {str(Path(file).relative_to(ROOT)) for file in done.stdout.split()}
    plumbing = {str(path) for path in PLUMBING}
    named = {file for file in files if (ROOT / file).stat().st_size} - plumbing  # and without empty __init__.py
    # Of the other environments, only the names are read.
    others = {str(folder) for folder in (ROOT / "selfimprove/envs").iterdir() if folder.name != "math"}
    asked = {file for file in named if str((ROOT / file).parent) in others}
    assert named - asked <= set(here[Path("stages/rise/generate.py")])
    assert not [file for file in asked if file.endswith(("env.py", "listed.py", "expert.py"))]
    assert "selfimprove/methods/rise/collect.py" in named


def test_init_files_are_empty_so_that_the_closure_can_omit_them() -> None:
    for top in ("selfimprove", "stages"):
        for file in (ROOT / top).rglob("__init__.py"):
            assert file.relative_to(ROOT) in PLUMBING or not ast.parse(file.read_text()).body, file


def test_a_stage_depends_only_on_the_environment_set_in_the_params(tmp_path: Path) -> None:
    for tree in ("selfimprove", "stages"):
        (tmp_path / tree).symlink_to(ROOT / tree)
    (tmp_path / "requirements").symlink_to(ROOT / "requirements")
    (tmp_path / KNOWN).parent.mkdir()  # each file is analysed once
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/worlds.py").write_text("import mine.words\n")
    (tmp_path / "mine/words.py").write_text("")
    for name, there in (
        ("textcraft", {"selfimprove/envs/textcraft/env.py", "selfimprove/envs/textcraft/world.py"}),
        ("webshop", {"selfimprove/envs/webshop/env.py", "selfimprove/envs/webshop/world.py"}),
        ("mine.worlds:Own", {"mine/worlds.py", "mine/words.py"}),
    ):
        (tmp_path / "params.yaml").write_text(f"agent_r: {{env: {{name: '{name}'}}}}\nrise: {{}}\n")
        files = set(closure(Path("stages/agent_r/generate.py"), tmp_path))
        assert there <= files
        assert not files & {"selfimprove/envs/taxi/world.py", "selfimprove/envs/taxi/env.py"}
        assert ("selfimprove/envs/textcraft/env.py" in files) == (name == "textcraft")
        assert "selfimprove/envs/math/gsm8k.py" in closure(Path("stages/rise/generate.py"), tmp_path)


def repository(folder: Path) -> Path:
    for path, text in {
        "stages/one.py": "from selfimprove.a import f\n",
        "stages/__init__.py": "",
        "selfimprove/a.py": "def f():\n    from selfimprove import b\n    import selfimprove.deep.c as c\n",
        "selfimprove/b.py": "import json\nfrom selfimprove.a import f\nimport selfimprove.engines.progress\n",
        "selfimprove/deep/c.py": "from pathlib import Path\nX = Path(__file__).with_name('x.txt'), 'unread.txt'\n",
        "selfimprove/deep/x.txt": "x",
        "selfimprove/deep/unread.txt": "x",
        "selfimprove/engines/progress.py": "from selfimprove import shown\n",
        "selfimprove/shown.py": "",
        "selfimprove/unused.py": "",
        "requirements/runtime.lock": "numpy==2\n",
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return folder


def test_the_closure_includes_imports_in_functions_indirect_imports_and_import_cycles(tmp_path: Path) -> None:
    assert closure(Path("stages/one.py"), repository(tmp_path)) == [
        "selfimprove/a.py", "selfimprove/b.py", "selfimprove/deep/c.py", "selfimprove/deep/x.txt", "stages/one.py",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("named", "files"),
    [
        ("mine:Own", {"__init__.py", "helper.py", "deep/other.py"}),
        ("mine.worlds:Own", {"__init__.py", "helper.py", "deep/other.py", "worlds.py"}),
        ("mine.deep.inner:Own", {"__init__.py", "helper.py", "deep/other.py", "deep/inner.py", "worlds.py"}),
    ],
)
def test_the_closure_of_a_user_s_package_includes_its_init_file_and_relative_imports(
    tmp_path: Path, named: str, files: set[str]
) -> None:
    for tree in ("selfimprove", "stages", "requirements"):
        (tmp_path / tree).symlink_to(ROOT / tree)
    for name, text in {
        "__init__.py": "from .helper import Own\n", "helper.py": "from .deep import other\nclass Own: pass\n",
        "worlds.py": "from . import helper\nfrom .helper import Own\n", "deep/__init__.py": "", "unused.py": "",
        "deep/inner.py": "from ..worlds import Own\nfrom ...above import nothing\n", "deep/other.py": "",
    }.items():  # fmt: skip
        (tmp_path / "mine" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mine" / name).write_text(text)
    (tmp_path / "params.yaml").write_text(f"agent_r: {{env: {{name: '{named}'}}}}\n")
    found = [file for file in closure(Path("stages/agent_r/generate.py"), tmp_path) if file.startswith("mine/")]
    assert found == sorted(f"mine/{name}" for name in files)


def test_a_manifest_lists_the_closure_and_the_environment_with_their_hashes(tmp_path: Path) -> None:
    (script,) = scripts(repository(tmp_path))
    hashes = {path: digest for digest, path in (line.split("  ") for line in manifest(script, tmp_path).splitlines())}
    assert list(hashes) == [*closure(script, tmp_path), str(ENVIRONMENT)]
    assert hashes["selfimprove/deep/x.txt"] == hashlib.sha256(b"x").hexdigest()
    assert hashes[str(ENVIRONMENT)] == hashlib.sha256(installed(tmp_path).encode()).hexdigest()
    assert hashes["stages/one.py"] == hashlib.sha256(program("from selfimprove.a import f").encode()).hexdigest()


@pytest.mark.parametrize(
    ("edited", "differs"),
    [
        ("selfimprove/b.py", True), ("selfimprove/deep/c.py", True), ("selfimprove/deep/x.txt", True),
        ("stages/one.py", True), ("selfimprove/unused.py", False), ("selfimprove/deep/unread.txt", False),
        ("selfimprove/engines/progress.py", False), ("selfimprove/shown.py", False), ("stages/two.py", False),
        ("requirements/runtime.lock", False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kept", [True, False], ids=["known before", "nothing known"])
def test_a_manifest_changes_only_with_files_that_the_script_imports_or_reads(
    tmp_path: Path, edited: str, differs: bool, kept: bool
) -> None:
    script = Path("stages/one.py")
    if kept:
        (tmp_path / KNOWN).parent.mkdir()
    before = manifest(script, repository(tmp_path))
    assert (tmp_path / KNOWN).exists() == kept
    with (tmp_path / edited).open("a") as file:
        file.write("edited = 1\n")
    assert (manifest(script, tmp_path) != before) == differs


PROGRAM = '''"""What it is for."""
X = 1
"""What X is."""

class A:
    """A class."""

    def f(self, x):  # a comment
        """Return it."""
        return g(x, "a text") if x else f"{x}"
'''


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"""What it is for."""', '"""Something else."""\n\n# With a comment.\n'), ('"""What X is."""', ""),
        ('"""A class."""', '"""Another."""'), ("        \"\"\"Return it.\"\"\"\n", ""), ("  # a comment", ""),
        ("X = 1", "X = (\n    1\n)"), ('"a text"', "'a text'"),
    ],
)  # fmt: skip
def test_comments_docstrings_layout_and_line_numbers_do_not_change_the_program(old: str, new: str) -> None:
    assert old in PROGRAM
    assert program(PROGRAM.replace(old, new)) == program(PROGRAM)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("X = 1", "X = True"), ("X = 1", "X = 1.0"), ('"a text"', '"another text"'), ("(self, x)", "(self, x=None)"),
        ('f"{x}"', 'f"{x!r}"'), ("g(x", "h(x"), ("return ", ""), ("X = 1", "X: int = 1"),
    ],
)  # fmt: skip
def test_code_and_string_literals_other_than_docstrings_change_the_program(old: str, new: str) -> None:
    assert old in PROGRAM
    assert program(PROGRAM.replace(old, new)) != program(PROGRAM)


def test_no_stage_reads_docstrings_or_its_own_source(here: dict[Path, list[str]]) -> None:
    """The closure ignores both. Files next to a module must be named in a form that the closure detects."""
    files = {file for script in scripts(ROOT) for file in here[script] if file.endswith(".py")}
    for file in files:
        text = (ROOT / file).read_text(encoding="utf-8")
        assert not re.search(r"\b(__doc__|getdoc|getsource|use_attribute_docstrings)\b", text), file
        for use in re.findall(r"Path\(__file__\)\S*", text):
            # With a literal name; or the repository's root, or the file itself as a program to run.
            assert re.match(r"Path\(__file__\)(\.with_name\(\"[\w.]+\"\)|\.resolve\(\)(\.parents\[\d\]|\)))", use), file


@pytest.mark.parametrize("damage", [b"", b"{}", None], ids=["empty", "torn", "one bit"])
def test_damage_to_the_cached_analysis_changes_no_manifest_and_is_repaired(
    tmp_path: Path, damage: bytes | None
) -> None:
    script, known = Path("stages/one.py"), tmp_path / KNOWN
    known.parent.mkdir()
    before = manifest(script, repository(tmp_path))
    content = known.read_bytes()
    code = before.partition(" ")[0].encode()  # the hash of a file's program
    known.write_bytes(content.replace(code, code[::-1]) if damage is None else damage)
    assert known.read_bytes() != content
    assert manifest(script, tmp_path) == before
    assert known.read_bytes() == content  # and it has been repaired


def test_a_manifest_changes_only_with_the_installed_versions_of_locked_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = Path("stages/one.py")
    before = manifest(script, repository(tmp_path))
    (tmp_path / "site/bitsandbytes-0.50.2.dist-info").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert manifest(script, tmp_path) == before
    (tmp_path / "site/numpy-9.0.dist-info").mkdir()
    assert manifest(script, tmp_path) != before


@pytest.mark.parametrize("starter", STARTED_BY_NAME, ids=str)
def test_modules_started_by_name_are_in_the_closures_of_the_scripts_that_start_them(
    starter: Path, here: dict[Path, list[str]]
) -> None:
    started = {str(module) for module in STARTED_BY_NAME[starter] if module not in PLUMBING}
    for script, files in here.items():
        if script == starter or str(starter) in files:
            assert started <= set(files), script


def test_every_module_named_in_a_string_literal_is_declared_as_started_by_name() -> None:
    """Modules are named in strings other than docstrings by commands and configs of processes; in plumbing, of runs."""
    declared = {module for modules in STARTED_BY_NAME.values() for module in modules}
    files = {path for top in ("selfimprove", "stages") for path in (ROOT / top).rglob("*.py")}
    for file in files - {ROOT / one for one in PLUMBING}:
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
