"""Repositories: the filter, sources of repositories, entries that an episode leaves out, and refusals."""

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from selfimprove.core.errors import UserError
from selfimprove.envs.autoexplore.inventory import check_same, inventory
from selfimprove.envs.autoexplore.repos import Repo, installed_repos, open_repos
from selfimprove.envs.autoexplore.tree import Leaveout, Tree, View

ROOT = Path(__file__).resolve().parents[3]
TEXT = "plain text of some length\n"


def test_the_filter_matches_whole_names(make_folder: Callable[[str, dict[str, str]], Path]) -> None:
    kept = ["precision.py", "cities.csv", "v1.0/notes.md", "circus/a.py", "testsuite.py", "a.b.c.yaml", "run.sh"]
    dropped = [
        *(".hidden.py", "_private.py", "__init__.py", ".git/a.py", "_build/a.py"),
        *("LICENSE.txt", "Makefile", "conf.py", "requirements.txt", "ci/a.py", "tests/a.py", "examples/a.py"),
        *("tests.old/a.py", "examples.d/a.py"),
        *("artwork/a.md", "ci.yml", "README", "a.png", "a.PY", "naïve.py", "dir/é.py", "line\nbreak.py"),
    ]
    repo = Repo.open(make_folder("repo", dict.fromkeys([*kept, *dropped], TEXT)))
    assert repo.files == tuple(sorted(kept))
    assert repo.name == "repo"


def test_the_filter_checks_contents(make_folder: Callable[[str, dict[str, str]], Path]) -> None:
    folder = make_folder("repo", {"a.py": TEXT, "nine.py": "x" * 9, "ten.py": "x" * 10})
    (folder / "windows.py").write_bytes(b"x" * 8 + b"\r\n")  # a line end is one character
    (folder / "binary.py").write_bytes(b"\xff\xfe\x00" * 20)
    (folder / "mostly.md").write_text("x" * 90 + "é" * 10, encoding="utf-8")
    (folder / "less.md").write_text("x" * 89 + "é" * 11, encoding="utf-8")
    (folder / "large.txt").write_text(
        "x" * (2**20 - 1) + "é" + "x", encoding="utf-8"
    )  # judged by its first MiB, which ends within é
    (folder / "link.py").symlink_to("a.py")
    (folder / "there").symlink_to("/")
    os.mkfifo(folder / "pipe.py")
    assert Repo.open(folder).files == ("a.py", "large.txt", "mostly.md", "ten.py")


def test_episodes_share_one_immutable_listing(repo: Repo) -> None:
    assert list(repo.tree.folders[""]) == ["README.md", "core", "data", "run.sh", "settings.yaml"]  # sorted
    with pytest.raises(TypeError):
        repo.tree.folders["new"] = {}  # type: ignore[index]
    with pytest.raises(TypeError):
        repo.tree.folders[""]["new"] = None  # type: ignore[index]
    assert View(repo.tree).entries("") is View(repo.tree).entries("")


def test_dot_entries_are_not_listed(make_folder: Callable[[str, dict[str, str]], Path]) -> None:
    tree = Tree.scan(make_folder("repo", {".env": TEXT, "a.py": TEXT, ".git/config": TEXT}))
    assert list(tree.folders) == [""]
    assert list(tree.folders[""]) == ["a.py"]


def test_leave_out_keeps_targets_and_their_ancestors(make_folder: Callable[[str, dict[str, str]], Path]) -> None:
    names = [f"{top}/{i}.py" for top in ("src", "src/deep", "srcs", "docs") for i in range(10)]
    tree = Tree.scan(make_folder("repo", dict.fromkeys(names, TEXT)))
    left, shown_prefix = 0, set()
    for episode in range(40):
        view = View(tree, Leaveout.around(["src/deep/3.py", "docs/1.py"], 0.5, "seed", episode))
        again = View(tree, Leaveout.around(["src/deep/3.py", "docs/1.py"], 0.5, "seed", episode))
        assert list(again.entries("src/deep")) == list(view.entries("src/deep"))  # regardless of earlier accesses
        assert {"src", "docs"} <= set(view.entries(""))
        assert "deep" in view.entries("src")
        assert "3.py" in view.entries("src/deep")
        assert "1.py" in view.entries("docs")
        left += 9 + 9 - len(view.entries("src/deep")) + 1 - len(view.entries("docs")) + 1
        shown_prefix.add("srcs" in view.entries(""))
    assert 0.44 < left / (40 * 18) < 0.56
    assert shown_prefix == {True, False}  # a name that only starts like an ancestor's may be left out
    assert list(View(tree, Leaveout.around([], 0.0, 1)).entries("docs")) == list(tree.folders["docs"])


def test_a_folder_is_opened_as_one_repository_or_several(
    make_folder: Callable[[str, dict[str, str]], Path], tmp_path: Path
) -> None:
    make_folder("many", {"b/x.py": TEXT, "a/deep/y.py": TEXT, "empty/z.png": TEXT})
    assert {name: repo.files for name, repo in open_repos(tmp_path / "many").items()} == {
        "a": ("deep/y.py",),
        "b": ("x.py",),
    }
    make_folder("one", {"README.md": TEXT, "src/y.py": TEXT})
    assert {name: repo.files for name, repo in open_repos(tmp_path / "one").items()} == {
        "one": ("README.md", "src/y.py")
    }


def test_python_packages_are_drawn_by_seed_within_bounds(make_folder: Callable[[str, dict[str, str]], Path]) -> None:
    for package, count in (("small", 2), ("large", 9), *((f"p{i}", 4) for i in range(6))):
        make_folder(f"site/{package}", dict.fromkeys([f"m{i}.py" for i in range(count)], TEXT))
    site = make_folder("site", {"_private/a.py": TEXT, "p1.dist-info/a.txt": TEXT, "single.py": TEXT})
    other = make_folder("other", {"p0/m.py": TEXT})  # p0 of the earlier source takes precedence
    draw: dict[str, Any] = {"min_files": 3, "max_files": 8, "sources": (site, other, Path("/nowhere"))}
    drawn = [list(installed_repos(3, seed, **draw)) for seed in range(8)]
    assert drawn[0] == list(installed_repos(3, 0, **draw))
    assert all(names == sorted(names) and set(names) <= {f"p{i}" for i in range(6)} for names in drawn)
    assert len({tuple(names) for names in drawn}) > 3
    with pytest.raises(UserError, match=r"only 6 of the Python packages .* but 7 are requested; request fewer"):
        installed_repos(7, 0, **draw)


def test_tasks_are_not_played_on_other_packages_than_they_were_made_from(
    make_folder: Callable[[str, dict[str, str]], Path], tmp_path: Path
) -> None:
    repos = {name: Repo.open(make_folder(name, {"a.py": TEXT, "b.py": TEXT}), name) for name in ("one", "two")}
    file = tmp_path / "repos.json"
    file.write_text(json.dumps([row.model_dump(mode="json") for row in inventory(repos)]))
    check_same(repos, file)
    with pytest.raises(UserError, match=r"made from other Python packages than those explored here \(such as two\)"):
        check_same({"one": repos["one"]}, file)
    (Path(repos["one"].tree.root) / "a.py").write_text(TEXT.upper())  # a newer version of a package
    with pytest.raises(UserError, match=r"such as one\); use the environment in which they were made, or make new"):
        check_same(repos, file)
    file.write_text("[1]")
    with pytest.raises(UserError, match=r"repos.json is damaged; restore it with `dvc checkout"):
        check_same(repos, file)


def test_packages_are_the_same_after_python_has_compiled_them(
    make_folder: Callable[[str, dict[str, str]], Path], tmp_path: Path
) -> None:
    folder, file = make_folder("one", {"a.py": TEXT, "b.py": TEXT, "_c.py": TEXT}), tmp_path / "repos.json"
    rows = inventory({"one": Repo.open(folder, "one")})
    assert rows[0].dropped == {"hidden": 1}
    file.write_text(json.dumps([row.model_dump(mode="json") for row in rows]))
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__/a.cpython-311.pyc").write_bytes(b"\0")
    check_same({"one": Repo.open(folder, "one")}, file)


def test_an_environment_beside_the_main_one_draws_the_main_one_s_packages(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "beside")], check=True)
    own = next((tmp_path / "beside/lib").glob("python*/site-packages"))
    (own / "main.pth").write_text(sysconfig.get_path("purelib"))
    make = own / "extra"
    make.mkdir()
    for name in range(9):
        (make / f"m{name}.py").write_text(TEXT)
    program = "from selfimprove.envs.autoexplore.repos import installed_repos; print(list(installed_repos(9, 3)))"
    said = [
        subprocess.run([python, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        for python in (sys.executable, str(tmp_path / "beside/bin/python"))
    ]
    assert said[0] == said[1]


def test_this_machines_installed_packages_can_be_explored() -> None:
    [(name, repo)] = installed_repos(1, 0).items()
    assert repo.name == name
    assert 5 <= len(repo.files) <= 300


def test_a_folder_whose_name_is_not_unicode_gets_a_printable_name(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"n\xff")
    folder.mkdir()
    (folder / "a.py").write_text(TEXT)
    (tmp_path / "link").symlink_to(folder)
    assert Repo.open(tmp_path / "link").name == r"n\udcff"


def test_nothing_to_explore_is_a_user_error(
    make_folder: Callable[[str, dict[str, str]], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, files in enumerate([{}, {"a.png": TEXT}, {"tests/a.py": TEXT}, {"short.py": "x"}]):
        folder = make_folder(f"repo{number}", files | {"README": TEXT})
        for read in (Repo.open, open_repos):
            with pytest.raises(UserError, match=rf"repo{number}: nothing to explore; name a folder with readable"):
                read(folder)
    folder = make_folder("locked", {"README": TEXT})
    (folder / "locked.py").write_bytes(b"\xff" * 20)
    with pytest.raises(
        UserError, match=r"nothing to explore \(1 of its files cannot be read; the first is 'locked.py'"
    ):
        Repo.open(folder)
    with pytest.raises(UserError, match=r"missing: cannot be listed \(No such file or directory\)"):
        open_repos(folder / "missing")
