"""The journal keeps all complete entries, however a kill or damage leaves its file."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfimprove.core.journal import Journal
from tests.pipeline.workbench import entry_key

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=5,
)
ENTRIES = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=8), VALUES, max_size=6)


def write(path: Path, entries: dict) -> None:
    with Journal(path) as journal:
        for key, value in entries.items():
            journal.add(key, value)


def kept(journal: Journal, *keys: str) -> dict:
    """The journal's entries, all of which are among ``keys``."""
    found = {key: journal[key] for key in keys if key in journal}
    assert len(found) == len(journal)
    return found


@settings(max_examples=60)
@given(entries=ENTRIES, data=st.data())
def test_any_truncation_of_the_file_leaves_a_prefix_of_the_entries(
    tmp_path_factory: pytest.TempPathFactory, entries: dict, data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("journal") / "j"
    write(path, entries)
    whole = path.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    path.write_bytes(whole[:cut])
    with Journal(path) as journal:
        count = whole[:cut].count(b"\n")
        assert kept(journal, *entries) == dict(list(entries.items())[:count])
        for key, value in entries.items():  # lost entries are written again, kept ones not twice
            journal.add(key, value)
    assert path.read_bytes() == whole


def test_an_entry_is_on_disk_when_add_returns(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j")
    journal.add("a", {"x": [1, "é\n\r\u2028"]})
    assert kept(Journal(tmp_path / "j"), "a") == {"a": {"x": [1, "é\n\r\u2028"]}}
    assert "a" in journal
    assert journal["a"] == {"x": [1, "é\n\r\u2028"]}
    journal.close()


def test_entries_reach_the_disk_twice_a_second_and_when_the_journal_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, flushed = [1000.0], list[float]()
    monkeypatch.setattr("selfimprove.core.journal.time.monotonic", lambda: now[0])
    monkeypatch.setattr(os, "fsync", lambda _: flushed.append(now[0] - 1000))
    with Journal(tmp_path / "j") as journal:
        for number in range(7):
            now[0] = 1000 + number / 4
            journal.add(str(number), number)
    assert flushed == [0.75, 1.5, 1.5]  # more than half a second after the last time


def test_an_absent_key_is_a_key_error_and_an_undamaged_journal_is_opened_in_silence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path / "j", {"a": 1})
    with Journal(tmp_path / "j") as journal, pytest.raises(KeyError, match="b"):
        journal["b"]
    assert capsys.readouterr().err == ""


def test_memory_does_not_grow_with_the_number_of_entries(tmp_path: Path) -> None:
    with Journal(tmp_path / "j") as journal:
        journal.add("first", 0)
        tracemalloc.start()
        for number in range(5000):
            journal.add(f"key {number}", [number])
        grown, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert grown < 50_000  # a dictionary of their file positions would take most of a megabyte


@pytest.mark.parametrize("place", [0, 20, 40, -3])
def test_a_damaged_line_loses_only_its_own_entry_which_can_be_written_again(
    tmp_path: Path, place: int, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = {"a": "first entry", "b": "second entry", "c": "third entry"}
    write(tmp_path / "j", entries)
    lines = (tmp_path / "j").read_bytes().splitlines(keepends=True)
    changed = bytearray(lines[1])
    changed[place] ^= 1  # one bit: usually still JSON
    (tmp_path / "j").write_bytes(lines[0] + changed + lines[2])
    with Journal(tmp_path / "j") as journal:
        assert kept(journal, *entries) == {"a": "first entry", "c": "third entry"}
        assert journal.damaged == 1
        assert "1 damaged lines were skipped" in capsys.readouterr().err
        journal.add("b", "second entry")
    with Journal(tmp_path / "j") as journal:
        assert kept(journal, *entries) == entries


@pytest.mark.parametrize("line", [b"\xff\xfe\n", b"null\n", b'{"key": "z", "value": 1}\n', b"\n"])
def test_a_line_without_a_valid_checksum_is_ignored(tmp_path: Path, line: bytes) -> None:
    write(tmp_path / "j", {"a": 1, "b": 2})
    (tmp_path / "j").write_bytes(line + (tmp_path / "j").read_bytes())
    with Journal(tmp_path / "j") as journal:
        assert kept(journal, "a", "b") == {"a": 1, "b": 2}


def test_other_journals_are_read_and_never_written(tmp_path: Path) -> None:
    write(tmp_path / "one", {"a": 1, "b": 2})
    write(tmp_path / "two", {"c": 3})
    torn = (tmp_path / "two").read_bytes() + b'{"key": "d", "va'
    (tmp_path / "two").write_bytes(torn)
    with Journal(tmp_path / "mine", [tmp_path / "one", tmp_path / "two", tmp_path / "absent"]) as journal:
        assert kept(journal, "a", "b", "c") == {"a": 1, "b": 2, "c": 3}
        journal.add("b", 5)  # already in another journal
        journal.add("e", 6)
    assert (tmp_path / "two").read_bytes() == torn
    assert [entry_key(line) for line in (tmp_path / "mine").read_bytes().splitlines()] == ["e"]


def test_a_failed_write_leaves_the_journal_intact_and_usable(tmp_path: Path) -> None:
    """A child process with a file-size limit simulates a full disk: it reaches the limit in the middle of an entry."""
    path = tmp_path / "j"
    child = os.fork()
    if child == 0:
        import resource

        code = 1
        try:
            journal = Journal(path)
            journal.add("a", "x" * 50)
            size = path.stat().st_size
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, resource.RLIM_INFINITY))
            try:
                journal.add("b", "y" * 50)
            except OSError:
                same = path.stat().st_size == size and "b" not in journal
                resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
                journal.add("c", 3)
                code = 0 if same else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert kept(Journal(path), "a", "b", "c") == {"a": "x" * 50, "c": 3}
