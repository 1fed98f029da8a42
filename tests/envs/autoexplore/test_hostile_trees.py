"""Ten thousand commands in hostile folders: nothing outside is read, nothing is written, nothing hangs or crashes.

Python's audit events record what the process does, so that even a read that leaves no trace in the output is detected.
"""

import os
import shutil
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from selfimprove.envs.autoexplore.sandbox import COMMANDS, LIST_LIMIT, Sandbox
from selfimprove.envs.autoexplore.tree import Leaveout, Tree, View

SECRET = "SECRET-OF-THE-OUTSIDE"
TREES, PER_TREE = 130, 90

NAMES = [
    *("a.py", "b c.md", "d", "e", "README", "x.csv"),
    *("-n", "--help", "-", "~", "$HOME", "..foo", "...", "*", "?", "|", ">", "&", "\\", "cd", "cat", "ls", "id"),
    *(
        "it's",
        '"q"',
        "'q'",
        '"',
        "`id`",
        "$(touch pwned)",
        "; touch pwned",
        "a\nb",
        "\t",
        "\x1b[2J",
        "\u202e",
        "é",
        "漢",
    ),
    "n" * 255,
    os.fsdecode(b"\xff\xfe.py"),
]
OUTSIDE = ["secret.py", "vault", "vault/secret.py", "pipe"]


def watch_process() -> Any:
    """Install an audit hook once, since it cannot be removed; it records events only while it is switched on."""
    seen: list[tuple[str, tuple]] = []
    state = {"on": False}

    def hook(event: Any, arguments: Any) -> None:
        if state["on"]:
            seen.append((event, arguments))

    sys.addaudithook(hook)
    return seen, state


EVENTS, WATCH = watch_process()

name = st.sampled_from(NAMES)
link = st.sampled_from(
    [".", "..", "/", "d", "e/d", "loop", "self", "../outside", "../outside/secret.py", "a.py", "/dev/zero"]
)
content = st.sampled_from(
    [b"", b"inside\n", b"\x00\xff\xfe\r\n\x1b[31m" * 50, b"word " * 5000, b"\n" * 3000, b"\xe6\xbc" * 99]
)
thing = st.one_of(
    st.tuples(st.just("file"), content),
    st.tuples(st.sampled_from(["dir", "fifo", "huge", "device", "locked"]), st.none()),
    st.tuples(st.just("link"), link),
)
plants = st.lists(st.tuples(st.lists(name, min_size=1, max_size=3), thing), min_size=8, max_size=14)

PARTS = [*NAMES, "..", ".", "", "loop", "self", "away", "outside", "secret.py", "vault"]
PLACES = ["/", "/etc/passwd", "/dev/zero", "/proc/self/environ", "{root}", "{root}/..", "{out}", "{out}/secret.py"]
OPERANDS = [
    *("/".join(parts) for length in (1, 2) for parts in product(PARTS, repeat=length)),
    *(f"{way}/{part}" for way in ("../..", "d/..", "e/d", "./d/", "away/vault", "loop/d", "d//e") for part in PARTS),
    *(f"{quote}{part}{quote}" for quote in "'\"" for part in PARTS),
    *PLACES,
    *(f"{place}/{part}" for place in ("{root}", "{root}/d", "{root}/away", "{out}") for part in PARTS),
]
PLANTED = [f"{form}{i}" for form in ("{planted}", "{under root}") for i in range(14)]  # the i-th planted entry
operand = st.one_of(
    st.sampled_from(PLANTED),
    st.sampled_from(PARTS),
    st.sampled_from(OPERANDS),
    st.sampled_from(PLACES),
    st.text(max_size=8),
)
command = st.one_of(
    st.tuples(st.sampled_from(COMMANDS), operand),
    st.tuples(st.sampled_from(COMMANDS), operand),
    st.tuples(st.sampled_from(COMMANDS), st.sampled_from(PLANTED)),  # so that many succeed, whatever else is drawn
    st.tuples(st.sampled_from(["head", "tail"]), st.just("-n"), st.sampled_from(["0", "1", "7", "999999999"]), operand),
    st.lists(
        st.sampled_from([*COMMANDS, "echo", "rm", ">", "|", ";", "-n", "-a", "a.py", "{out}/secret.py"]), max_size=4
    ),
)


def build(root: Path, planted: Any) -> None:
    """Create a folder with the planted entries; if two have the same path, the first one is created."""
    root.mkdir()
    (root / "self").symlink_to("self")
    (root / "loop").symlink_to("d/loop")
    (root / "away").symlink_to("../outside")
    for names, (kind, what) in planted:
        path = root.joinpath(*names)
        try:
            if any(parent.is_symlink() for parent in path.parents if parent.is_relative_to(root)):
                continue  # planting must not write outside the root
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_symlink() or path.exists():
                continue
            if kind == "dir":
                path.mkdir()
            elif kind == "link":
                path.symlink_to(what)
            elif kind == "fifo":
                os.mkfifo(path)
            elif kind == "device":
                os.mknod(path, 0o20666, os.makedev(1, 5))  # /dev/zero: only the superuser may create one
            else:
                path.write_bytes(what or b"inside\n")
                if kind == "huge":
                    os.truncate(path, 2**36)  # sparse
                elif kind == "locked":
                    path.chmod(0)
        except (FileExistsError, NotADirectoryError, PermissionError):
            continue


def state_of(folder: Path) -> list:
    """Mode, size and change times of everything below a folder; no access times, since reads may update them."""
    found = []
    for place, folders, files in os.walk(folder):
        for entry in [*folders, *files]:
            status = os.lstat(os.path.join(place, entry))
            found.append((place, entry, status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
    return sorted(found)


def spell(word: str, planted: Any, ground: Path, cwd: str) -> str:
    """Fill in an operand's placeholders: a planted entry, relative to ``cwd`` or below the root's path, or a place."""
    for form, path in (("{planted}", None), ("{under root}", str(ground / "root"))):
        if word.startswith(form):
            names = planted[int(word[len(form) :]) % len(planted)][0]
            return os.path.join(path, *names) if path else os.path.relpath("/".join(names), cwd or ".")
    return word.replace("{root}", str(ground / "root")).replace("{out}", str(ground / "outside"))


def check_events(root: str) -> None:
    """Assert that the only events are opening the root and opening single names below it for reading."""
    for event, arguments in EVENTS:
        assert event == "open", (event, arguments)
        path, _, flags = arguments
        if isinstance(path, int):
            continue  # wrapping an open descriptor
        assert flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND) == 0
        if path != root:
            assert "/" not in path
            assert path != ".."
            assert flags & os.O_NOFOLLOW


@pytest.fixture(scope="module")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "outside" / "vault").mkdir(parents=True)
    for secret in ("secret.py", "vault/secret.py", "a.py", SECRET):
        (folder / "outside" / secret).write_text(SECRET)
    os.mkfifo(folder / "outside" / "pipe")
    return folder


@pytest.mark.slow
def test_ten_thousand_commands_in_hostile_trees_stay_inside(ground: Path) -> None:
    ran = {"commands": 0, "successes": 0, "files read": 0}

    @settings(
        max_examples=TREES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],  # shrinking 90 commands takes minutes; a failing example is shown as it is
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
    )
    @given(plants, st.lists(command, min_size=PER_TREE, max_size=PER_TREE), st.sampled_from([0.0, 0.3]))
    def hold(planted: Any, commands: Any, leaveout: float) -> None:
        root = ground / "root"
        shutil.rmtree(root, ignore_errors=True)
        build(root, planted)
        before, place = state_of(ground), os.getcwd()
        tree = Tree.scan(root, lambda path, name, kind: True)
        box = Sandbox(View(tree, Leaveout.around(["a.py"], leaveout, 7)))
        for argv in commands:
            cwd = box.cwd
            argv = [spell(word, planted, ground, cwd) for word in argv]
            EVENTS.clear()
            WATCH["on"] = True
            try:
                result = box.run(argv)
            finally:
                WATCH["on"] = False
            check_events(str(root))
            ran["commands"] += 1
            ran["successes"] += result.ok
            ran["files read"] += any(path not in (str(root),) for _, (path, *_) in EVENTS)
            assert result.text.startswith("Success: " if result.ok else "Error: ")
            assert SECRET not in result.text
            assert str(root) not in result.text or any(str(root) in word for word in argv)
            assert len(result.text) < LIST_LIMIT * 400
            assert not any(ord(char) < 32 and char not in "\n\t" for char in result.text)
            assert box.cwd in tree.folders
            if not result.ok:
                assert box.cwd == cwd
            elif len(argv) > 1:  # the operating system resolves it to a path inside, too
                words = [argv[-1], argv[-1].strip("'\""), argv[-1][1:-1]]
                real = {os.path.realpath(os.path.join(root, cwd, word)) for word in words if "\0" not in word}
                assert any((path + "/").startswith(f"{root}/") for path in real)
            if result.identified is not None:
                assert tree.is_file(result.identified)
        assert os.getcwd() == place
        assert state_of(ground) == before

    hold()
    assert ran["commands"] >= 10_000
    assert ran["successes"] > 700
    assert ran["files read"] > 400


def test_a_folder_that_is_replaced_by_a_link_during_listing_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/secret").write_text("x")
    (tmp_path / "tree/sub/deep").mkdir(parents=True)

    def swap(path: Path, name: Any, kind: Any) -> bool:
        if name == "sub":
            (path / "deep").rmdir()
            path.rmdir()
            path.symlink_to(tmp_path / "outside")
        return True

    listed = Tree.scan(tmp_path / "tree", swap)
    assert dict(listed.folders["sub"]) == {}
