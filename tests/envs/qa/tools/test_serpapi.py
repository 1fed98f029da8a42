import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfimprove.core.errors import UserError
from selfimprove.envs.qa.tools.dispatch import make_tools
from selfimprove.envs.qa.tools.params import ToolsParams
from selfimprove.envs.qa.tools.serpapi import SearchFailed, SerpApiParams, SerpApiSearch, pick
from tests.support.http_server import Handler, serve

KEY = "s3cret-key"


@contextmanager
def service(*replies: Any) -> Iterator[Any]:
    """A local service that sends each (status, body) once and repeats the last; yields its address and the queries."""
    left, seen = list(replies), []

    class Replies(Handler):
        def do_GET(self) -> None:
            seen.append({name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()})
            status, body = left.pop(0) if len(left) > 1 else left[0]
            self.respond(status, body if isinstance(body, bytes) else json.dumps(body).encode())

    with serve(Replies) as url:
        yield f"{url}/search.json", seen


def made(url: Any, **params: Any) -> SerpApiSearch:
    return SerpApiSearch(SerpApiParams(url=url, backoff=0.0, **params), {"SERPAPI_API_KEY": f" {KEY}\n"})


HITS = [{"title": "no snippet"}, {"snippet": ""}, {"snippet": " third hit "}, {"snippet": "fourth"}]


@pytest.mark.parametrize(
    ("page", "answer"),
    [
        ({"answer_box": {"answer": "a", "snippet": "s"}, "organic_results": HITS}, "a"),
        ({"answer_box": {"snippet": "s", "snippet_highlighted_words": ["h"]}, "organic_results": HITS}, "s"),
        ({"answer_box": {"snippet_highlighted_words": ["h", "i"]}, "organic_results": HITS}, "h"),
        ({"answer_box": {"title": "t"}, "organic_results": HITS}, "third hit"),  # all hits are searched for a snippet
        ({"organic_results": HITS}, "third hit"),
        ({"answer_box": [{"title": "t"}, {"answer": "listed"}]}, "listed"),
        ({"answer_box": {"answer": " "}, "organic_results": HITS[:2]}, None),
        ({"organic_results": []}, None),  # the original raises
        ({}, None),
        ({"answer_box": {"answer": 7}, "organic_results": "none"}, "7"),
        ({"answer_box": {"answer": 42.5}, "organic_results": HITS}, "42.5"),
        ({"answer_box": {"answer": True}, "organic_results": HITS}, "third hit"),
    ],
)
def test_the_result_is_the_first_available_of_answer_snippet_phrase_and_hit(page: Any, answer: str | None) -> None:
    assert pick(page) == answer
    with service((200, page)) as (url, seen):
        assert made(url)("who?") == answer
    assert [(call["q"], call["engine"], call["gl"], call["hl"]) for call in seen] == [("who?", "google", "us", "en")]
    assert seen[0]["api_key"] == KEY


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["answer_box", "organic_results", "answer", "snippet", "snippet_highlighted_words"]), inner
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["answer_box", "organic_results", "error"]), json_values))
def test_any_page_yields_text_or_none(page: Any) -> None:
    answer = pick(page)
    assert answer is None or answer.strip() == answer != ""


def test_transient_errors_are_retried() -> None:
    good = {"answer_box": {"answer": "a"}}
    with service((429, {}), (500, {}), (200, b"{torn"), (200, good)) as (url, seen):
        assert made(url)("q") == "a"
    assert len(seen) == 4


@pytest.mark.parametrize(("params", "seconds"), [({}, 20.0), ({"timeout": 7.5}, 7.5)])
def test_every_try_has_the_params_timeout(params: Any, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    timeouts = []

    def busy(_: httpx.HTTPTransport, request: httpx.Request) -> httpx.Response:
        timeouts.append(request.extensions["timeout"])
        return httpx.Response(503)

    monkeypatch.setattr(httpx.HTTPTransport, "handle_request", busy)
    with pytest.raises(SearchFailed):
        made("http://127.0.0.1/search.json", tries=2, **params)("q")
    assert timeouts == [dict.fromkeys(("connect", "read", "write", "pool"), seconds)] * 2


def test_after_the_last_try_the_call_fails_with_a_message_that_omits_the_key() -> None:
    refusal = pytest.raises(SearchFailed, match=r"status 503 \(2 tries\)")
    with service((503, {"error": KEY})) as (url, seen), refusal as failed:
        made(url, tries=2)("q")
    assert len(seen) == 2
    assert KEY not in str(failed.value)
    with pytest.raises(SearchFailed, match="ConnectError") as failed:
        made(url, tries=2)("q")  # nothing is listening there any more
    assert KEY not in str(failed.value)
    assert failed.value.__cause__ is None


@pytest.mark.parametrize("status", [401, 403])
def test_a_rejected_key_ends_the_run_and_a_rejected_query_does_not(status: int) -> None:
    refusal = pytest.raises(UserError, match=rf"rejects the key SERPAPI_API_KEY \(status {status}\)")
    with service((status, {"error": f"Invalid API key {KEY}"})) as (url, seen), refusal as refused:
        made(url)("q")
    assert KEY not in str(refused.value)
    assert len(seen) == 1
    with service((400, {})) as (url, seen), pytest.raises(SearchFailed, match="status 400"):
        made(url)("q")
    assert len(seen) == 1


def test_the_key_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    with service((200, {"answer_box": {"answer": "a"}})) as (url, _):
        assert made(url)("q") == "a"
    assert KEY not in caplog.text


def test_a_missing_key_fails_at_start_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SERPAPI_API_KEY", raising=False)
    with pytest.raises(
        UserError, match=r"SERPAPI_API_KEY is not set; export SERPAPI_API_KEY=<key>, or set local or replay"
    ):
        make_tools(ToolsParams(use={"search": "serpapi"}), None)
    monkeypatch.setenv("SERPAPI_API_KEY", "  ")
    with pytest.raises(UserError, match="is not set"):
        make_tools(ToolsParams(use={"search": "serpapi"}), None)


def test_a_cache_named_in_the_params_is_used_before_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio

    monkeypatch.setenv("OTHER_KEY", KEY)
    with service((200, {"answer_box": {"answer": "a"}})) as (url, seen):
        params = ToolsParams(
            use={"search": "serpapi"},
            cache=str(tmp_path / "cache.jsonl"),
            serpapi=SerpApiParams(url=url, api_key_env="OTHER_KEY"),
        )
        for _ in range(2):
            tools = make_tools(params, None)
            assert asyncio.run(tools.call("search", "who?")) == "a"
            tools.close()
    assert len(seen) == 1
    assert KEY not in (tmp_path / "cache.jsonl").read_text()
