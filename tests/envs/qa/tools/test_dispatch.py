import asyncio
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from selfimprove.core.errors import UserError
from selfimprove.core.records import write_jsonl
from selfimprove.envs.qa.base import Paragraph
from selfimprove.envs.qa.tools import dispatch
from selfimprove.envs.qa.tools.dispatch import Tools, make_tools, own_tool
from selfimprove.envs.qa.tools.params import ToolsParams

ROOT = Path(__file__).resolve().parents[4]


def tools(tool: Any, *, concurrency: int = 4, timeout: float = 30.0, longest: int = 2000) -> Tools:
    return Tools({"Search": tool}, concurrency=concurrency, timeout=timeout, longest=longest)


def call(made: Any, argument: str = "x", name: str = "search") -> Any:
    return asyncio.run(made.call(name, argument))


def gather(made: Any, arguments: Any) -> Any:
    async def go() -> Any:
        return await asyncio.gather(*(made.call("search", argument) for argument in arguments))

    return asyncio.run(go())


@pytest.mark.parametrize("name", ["search", "Search", "SEARCH", " search "])
def test_tool_names_are_case_insensitive(name: str) -> None:
    made = tools(str.upper)
    assert made.has(name)
    assert call(made, "owl", name) == "OWL"


def test_an_unknown_tool_returns_none_and_is_counted() -> None:
    made = tools(str.upper)
    assert not made.has("lookup")
    assert call(made, "owl", "lookup") is None
    assert made.stats == {"calls": 1, "unknown": 1}


def test_a_call_returns_one_line_of_text_or_none() -> None:
    made = tools({"a": "found", "b": None, "c": "", "d": " two\n lines\t", "e": 7}.get)
    assert gather(made, "abcde") == ["found", None, None, "two lines", None]
    assert made.stats == {"calls": 5, "empty": 2, "odd": 1}


def test_a_tools_exceptions_become_none_and_are_counted_by_type_without_their_messages() -> None:
    def broken(argument: Any) -> None:
        if argument == "exit":
            sys.exit(3)
        if argument == "late":
            raise TimeoutError
        if argument == "nothing":
            next(iter([]))
        raise ValueError(f"secret {argument}")

    made = tools(broken)
    assert gather(made, ["a", "b", "exit", "late", "nothing"]) == [None] * 5
    assert made.stats == {"calls": 5, "failed": 5}
    assert made.faults == {"ValueError": 2, "RuntimeError": 1, "TimeoutError": 1, "StopIteration": 1}


def test_a_call_that_hangs_is_abandoned_and_others_continue() -> None:
    release = threading.Event()

    def hanging(argument: Any) -> Any:
        if argument == "hang":
            release.wait(60)
        return argument

    made = tools(hanging, concurrency=1, timeout=0.2)
    try:
        assert gather(made, ["a", "hang", "hang", "b"]) == ["a", None, None, "b"]
    finally:
        release.set()
    assert made.stats["late"] == 2


def test_a_hanging_tool_does_not_prevent_the_process_from_exiting() -> None:
    program = """
import asyncio, time
from selfimprove.envs.qa.tools import dispatch
from selfimprove.envs.qa.tools.dispatch import Tools
made = Tools({"search": lambda _: time.sleep(600)}, concurrency=2, timeout=0.1, longest=100)
print(asyncio.run(made.call("search", "x")))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout == "None\n"


def test_a_tool_that_hangs_at_every_call_occupies_a_bounded_number_of_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "MOST_STUCK", 3)
    release = threading.Event()

    def hang(argument: Any) -> Any:
        release.wait(60)
        return argument

    made = tools(hang, timeout=0.01)
    before = threading.active_count()
    assert [call(made) for _ in range(9)] == [None] * 9
    assert made.stats["late"] == 9
    assert threading.active_count() - before <= 3
    release.set()
    while threading.active_count() > before:
        time.sleep(0.01)
    made = tools(hang, timeout=30.0)
    assert call(made, "well again") == "well again"


def test_an_answer_of_10_mb_is_cut() -> None:
    made = tools(lambda _: "word " * 2_000_000, longest=500)
    answer = call(made)
    assert len(answer) == 499
    assert made.stats == {"calls": 1, "cut": 1}
    assert call(tools(lambda _: "x" * 10_000_000)) == "x" * 2000
    assert call(tools(lambda _: " " * 10_000_000)) is None


def test_lone_surrogates_are_replaced_and_surrogate_pairs_joined() -> None:
    assert call(tools(lambda _: "a\ud800b")) == "a\ufffdb"
    assert call(tools(lambda _: "\ud83d\ude00")) == "\U0001f600"


def test_calls_run_concurrently_up_to_the_limit() -> None:
    lock, now, most = threading.Lock(), 0, 0
    all_there = threading.Barrier(3, timeout=30)

    def slow(argument: Any) -> Any:
        nonlocal now, most
        with lock:
            now += 1
            most = max(most, now)
        all_there.wait()
        with lock:
            now -= 1
        return argument

    made = tools(slow, concurrency=3)
    assert gather(made, [str(i) for i in range(12)]) == [str(i) for i in range(12)]
    assert most == 3


def test_answers_belong_to_their_calls_whichever_finishes_first() -> None:
    def uneven(argument: Any) -> str:
        time.sleep(0.02 * (5 - int(argument)))
        return f"answer {argument}"

    assert gather(tools(uneven, concurrency=5), "01234") == [f"answer {i}" for i in range(5)]


def test_a_user_error_raised_by_a_tool_ends_the_run() -> None:
    def refused(_: Any) -> None:
        raise UserError("the key is refused; set it again.")

    with pytest.raises(UserError, match="the key is refused"):
        call(tools(refused))


def test_a_custom_tool_is_one_function_and_one_line_of_params(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_tools.py").write_text("def shout(text: str) -> str:\n    return text.upper()\n\nnumber = 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    made = make_tools(ToolsParams(use={"shout": "my_tools:shout"}), None)
    assert call(made, "owl", "SHOUT") == "OWL"
    with pytest.raises(UserError, match=r"tools\.use\.x: my_tools has no function 'number'"):
        own_tool("my_tools:number", "tools.use.x")
    with pytest.raises(UserError, match=r"tools\.use\.x: module 'nowhere_at_all' cannot be imported"):
        own_tool("nowhere_at_all:f", "tools.use.x")
    (tmp_path / "torn_tools.py").write_text("def shout(:\n")
    with pytest.raises(UserError, match=r"tools\.use\.x: module 'torn_tools' cannot be imported \(SyntaxError"):
        own_tool("torn_tools:shout", "tools.use.x")


def test_built_in_tools_are_created_by_name(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "corpus.jsonl", [Paragraph(title="Tolma", text="A town by the sea.")])
    (tmp_path / "snippets.jsonl").write_text('{"query": "tolma", "snippet": "by the sea"}\n')
    params = ToolsParams(use={"search": "local", "recall": "replay"}, snippets=str(tmp_path / "snippets.jsonl"))
    made = make_tools(params, tmp_path / "corpus.jsonl")
    assert [call(made, "Tolma"), call(made, "tolma", "Recall")] == ["A town by the sea.", "by the sea"]
    made.close()
    with pytest.raises(UserError, match=r"tools\.use\.search: local needs a corpus"):
        make_tools(ToolsParams(), None)
    with pytest.raises(UserError, match=r"replay needs tools\.snippets"):
        make_tools(ToolsParams(use={"search": "replay"}), None)


@pytest.mark.parametrize(("limits", "length"), [({}, 2000), ({"longest": 50}, 50), ({"longest": 3000}, 3000)])
def test_answers_are_cut_to_the_params_longest(limits: Any, length: int) -> None:
    made = make_tools(ToolsParams(use={"search": "builtins:str"}, **limits), None)
    assert call(made, "x" * 9000) == "x" * length
    assert made.stats == {"calls": 1, "cut": 1}


SHORE = ["owl by the sea", "owl", "gull and sand", "gull and gull"]
"""By default a shorter text is better than a longer one (``b``), and a repeated word better than a single (``k1``)."""


@pytest.mark.parametrize(
    ("changed", "query", "before", "after"),
    [
        ({"b": 0.0}, "an owl", "owl", "owl by the sea"),
        ({"k1": 0.0}, "a gull", "gull and gull", "gull and sand"),
    ],
)
@pytest.mark.parametrize("behind", ["local", "replay"])
def test_the_rankings_params_reach_both_searches(
    behind: str, changed: Any, query: str, before: str, after: str, tmp_path: Path
) -> None:
    write_jsonl(tmp_path / "corpus.jsonl", [Paragraph(title="", text=text) for text in SHORE])
    rows = [json.dumps({"query": text, "snippet": text}) for text in SHORE]
    (tmp_path / "snippets.jsonl").write_text("\n".join(rows))
    for params, answer in (({}, before), (changed, after)):
        cfg = ToolsParams(use={"search": behind}, snippets=str(tmp_path / "snippets.jsonl"), **params)
        assert call(make_tools(cfg, tmp_path / "corpus.jsonl"), query) == answer


@pytest.mark.parametrize(
    ("changed", "query", "after"), [({"setup": "plain"}, "tolma", None), ({"cut": 20}, "town", "A town by the ...")]
)
def test_setup_and_cut_reach_the_local_search(changed: Any, query: str, after: str | None, tmp_path: Path) -> None:
    text = "A town by the sea, near the river"
    write_jsonl(tmp_path / "corpus.jsonl", [Paragraph(title="Tolma", text=text), Paragraph(title="", text="Owls")])
    assert call(make_tools(ToolsParams(), tmp_path / "corpus.jsonl"), query) == text
    assert call(make_tools(ToolsParams(**changed), tmp_path / "corpus.jsonl"), query) == after


@pytest.mark.parametrize(
    "use",
    [{}, {"search": "bing"}, {"search": "a:b c"}, {"finish": "local"}, {"a[": "local"}, {"a": "local", "A": "replay"}],
)
def test_tools_that_cannot_be_called_are_refused(use: Any) -> None:
    with pytest.raises(ValidationError, match="use"):
        ToolsParams(use=use)
