import asyncio
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from selfimprove.core.errors import UserError
from selfimprove.core.journal import Journal
from selfimprove.envs.qa.tools.cache import CachedSearch
from selfimprove.envs.qa.tools.dispatch import Tools

ROOT = Path(__file__).resolve().parents[4]


class Counting:
    """Returns the query reversed and records all queries."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.lock = threading.Lock()

    def __call__(self, query: Any) -> Any:
        with self.lock:
            self.asked.append(query)
        if query == "bad":
            raise OSError("down")
        return query[::-1] or None


def test_a_query_is_sent_to_the_service_once_across_runs(tmp_path: Path) -> None:
    first, second = Counting(), Counting()
    cache = CachedSearch(first, tmp_path / "deep" / "cache.jsonl")
    assert [cache("abc"), cache("abc"), cache("Abc"), cache(""), cache("")] == ["cba", "cba", "cbA", None, None]
    assert first.asked == ["abc", "Abc", ""]  # queries match exactly; empty results are stored too
    cache.close()
    again = CachedSearch(second, tmp_path / "deep" / "cache.jsonl")
    assert [again("abc"), again("")] == ["cba", None]
    assert second.asked == []
    assert again.hits == 2
    again.close()


def test_two_processes_that_use_one_file_keep_all_answers(tmp_path: Path) -> None:
    file = tmp_path / "cache.jsonl"
    first, second = CachedSearch(Counting(), file), CachedSearch(Counting(), file)
    for n in range(4):
        assert [first(f"first {n}"), second(f"second {n}")] == [f"{n} tsrif", f"{n} dnoces"]
    assert [first("first 0"), second("second 0")] == ["0 tsrif", "0 dnoces"]  # read from their places in the file
    for one in (first, second):
        one.close()
    asked = Counting()
    assert {CachedSearch(asked, file)(f"{who} {n}") for who in ("first", "second") for n in range(4)}
    assert asked.asked == []


def test_an_answer_written_while_another_process_opens_the_file_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cache.jsonl"
    writing = CachedSearch(Counting(), file)
    replay, threads = Journal._replay, []

    def slowly(self: Journal, opened: int) -> int:
        length = replay(self, opened)
        threads.append(threading.Thread(target=writing, args=("late",)))
        threads[0].start()
        threads[0].join(0.2)  # without a lock it has written by now
        return length

    monkeypatch.setattr(Journal, "_replay", slowly)
    CachedSearch(Counting(), file).close()
    monkeypatch.undo()
    threads[0].join()
    writing.close()
    asked = Counting()
    assert CachedSearch(asked, file)("late") == "etal"
    assert asked.asked == []


def test_failures_are_not_cached(tmp_path: Path) -> None:
    search = Counting()
    cache = CachedSearch(search, tmp_path / "cache.jsonl")
    for _ in range(2):
        with pytest.raises(OSError, match="down"):
            cache("bad")
    assert search.asked == ["bad", "bad"]
    cache.close()


def test_an_answer_with_half_of_a_character_is_paid_for_once(tmp_path: Path) -> None:
    asked = []

    def cut(query: str) -> str:
        asked.append(query)
        return "An answer \ud83d"  # an emoji cut in half

    for _ in range(2):
        cache = CachedSearch(cut, tmp_path / "cache.jsonl")
        assert cache("abc") == "An answer \ufffd"
        cache.close()
    assert asked == ["abc"]


def test_an_answer_that_cannot_be_stored_ends_the_run(tmp_path: Path) -> None:
    file, asked = tmp_path / "cache.jsonl", Counting()
    cache = CachedSearch(asked, file)
    assert cache("first") == "tsrif"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 10, before[1]))  # as if the disk were full
    try:
        tools = Tools({"search": cache}, concurrency=1, timeout=60, longest=400)
        with pytest.raises(UserError, match=r"cache.jsonl can't be written .No space left on device.; free"):
            asyncio.run(tools.call("search", "second"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert cache("second") == "dnoces"
    cache.close()
    again = Counting()
    assert [CachedSearch(again, file)(query) for query in ("first", "second")] == ["tsrif", "dnoces"]
    assert again.asked == []


def test_the_service_is_called_once_if_many_threads_send_the_same_query(tmp_path: Path) -> None:
    search = Counting()

    def slow(query: Any) -> Any:  # so that other threads arrive during the call
        time.sleep(0.02)
        return search(query)

    cache = CachedSearch(slow, tmp_path / "cache.jsonl")
    queries = [f"q{i % 7}" for i in range(200)]
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(cache, queries)) == [query[::-1] for query in queries]
    cache.close()
    assert sorted(search.asked) == [f"q{i}" for i in range(7)]
    assert len((tmp_path / "cache.jsonl").read_text().splitlines()) == 7


def test_a_torn_last_line_is_dropped_and_the_rest_kept(tmp_path: Path) -> None:
    file = tmp_path / "cache.jsonl"
    cache = CachedSearch(Counting(), file)
    cache("abc")
    cache("def")
    cache.close()
    file.write_bytes(file.read_bytes()[:-4])
    search = Counting()
    cache = CachedSearch(search, file)
    assert [cache("abc"), cache("def"), cache("ghi")] == ["cba", "fed", "ihg"]
    assert search.asked == ["def", "ghi"]
    cache.close()
    assert [b' {"key":' in line for line in file.read_bytes().splitlines()] == [True, True, True]


def test_answers_survive_a_process_that_is_killed(tmp_path: Path) -> None:
    program = """
import os, signal, sys
from pathlib import Path
from selfimprove.core.errors import UserError
from selfimprove.envs.qa.tools.cache import CachedSearch
cache = CachedSearch(lambda query: query.upper(), Path(sys.argv[1]))
cache("paid for")
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "c.jsonl"], cwd=ROOT, env={**os.environ}, check=False
    )
    assert done.returncode == -signal.SIGKILL
    search = Counting()
    assert CachedSearch(search, tmp_path / "c.jsonl")("paid for") == "PAID FOR"
    assert search.asked == []


@pytest.mark.parametrize(
    "foreign", [b"my thesis", b"{}\n", b'{"a": 1}', b"0123456789abcdef\n", b"0123456789abcdef x", b"\n", b"DEADBEEF 1"]
)
def test_a_foreign_file_is_refused_and_left_untouched(foreign: bytes, tmp_path: Path) -> None:
    file = tmp_path / "thesis.txt"
    file.write_bytes(foreign)
    with pytest.raises(
        UserError, match=r"^tools\.cache: .*thesis\.txt is not a cache of search results; name another file"
    ):
        CachedSearch(Counting(), file)
    assert file.read_bytes() == foreign


def test_a_file_with_a_torn_first_line_is_accepted_as_a_cache(tmp_path: Path) -> None:
    file = tmp_path / "cache.jsonl"
    cache = CachedSearch(Counting(), file)
    cache("abc")
    cache.close()
    line = file.read_bytes()
    for length in (0, 1, 15, 16, 17, 18, 19, len(line) - 1):
        file.write_bytes(line[:length])
        cache = CachedSearch(Counting(), file)
        assert cache("abc") == "cba"
        cache.close()
        assert file.read_bytes() == line


def test_a_cache_path_that_is_not_a_regular_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name, said in (
        ("folder", "is a folder; name a file"),
        ("a\0", "cannot be opened .embedded null byte.; name another file"),
        ("file/cache.jsonl", "cannot be opened"),
        ("pipe", "is a pipe or a device"),
    ):
        with pytest.raises(UserError, match=said):
            CachedSearch(Counting(), tmp_path / name)
    assert (tmp_path / "file").read_text() == "x"
