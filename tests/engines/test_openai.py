"""The remote engine against a real HTTP server that misbehaves: retries, time-outs, failures, keys."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from selfimprove.core.errors import UserError
from selfimprove.core.records import Message
from selfimprove.core.seeds import SeedKey
from selfimprove.engines.api_key import find_key
from selfimprove.engines.base import Completion, EngineError, Request
from selfimprove.engines.config import OpenAiEngineConfig
from selfimprove.engines.openai import OpenAiEngine, spaced_seed
from selfimprove.engines.openai_answers import retry_after
from tests.engines.http_endpoint import Endpoint, Reply, Seen, Step, answer, echo, endpoint

KEY = "sk-a-key-that-nobody-may-see-0123456789"


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def config(url: str, **changes: Any) -> OpenAiEngineConfig:
    values = {"tries": 3, "backoff": 0.0, "backoff_max": 0.0, "timeout": 20.0, **changes}
    return OpenAiEngineConfig(engine="openai", base_url=url, model="teacher", **values)


def ask(text: str = "How many?", task: str = "t1", **changes: Any) -> Request:
    return Request([Message(role="user", content=text)], SeedKey(7, task), **changes)


def run(server: Endpoint, *requests: Request, **changes: Any) -> tuple[list[Any], OpenAiEngine]:
    """Send the requests concurrently; returns results or exceptions in the same order, and the engine."""

    async def work() -> tuple[list[Any], OpenAiEngine]:
        engine = OpenAiEngine(config(server.url, **changes))
        try:
            return await asyncio.gather(*map(engine.generate, requests), return_exceptions=True), engine
        finally:
            await engine.close()

    return asyncio.run(work())


def fail(status: int, text: str = "overloaded", **headers: str) -> Step:
    body = json.dumps({"error": {"message": text}}).encode()
    return lambda _: Reply(status, body, {name.replace("_", "-"): value for name, value in headers.items()})


def send(body: bytes) -> Step:
    return lambda _: Reply(body=body)


def test_a_request_follows_the_protocol_and_its_usage_is_counted() -> None:
    request = Request(
        [Message(role="system", content="Solve."), Message(role="user", content="2+2? \ud800")],
        SeedKey(1, "x"), n=2, temperature=0.7, top_p=0.9, max_tokens=64, stop=["\nQ:"],
    )  # fmt: skip
    with endpoint() as server:
        [completions], engine = run(server, request)
    [seen] = server.seen
    assert seen.path == "/v1/chat/completions"
    assert seen.headers["authorization"] == f"Bearer {KEY}"
    assert seen.body.pop("seed") == spaced_seed(SeedKey(1, "x").bits(), 16)
    assert seen.body == {
        "model": "teacher", "n": 2, "temperature": 0.7, "top_p": 0.9, "max_tokens": 64, "stop": ["\nQ:"],
        "messages": [{"role": "system", "content": "Solve."}, {"role": "user", "content": "2+2? \ud800"}],
    }  # fmt: skip
    assert [c.finish for c in completions] == ["stop", "stop"]
    assert completions[0].text == "2+2? \ufffd #0", "a lone surrogate cannot be written as UTF-8"
    stats = engine.stats
    assert (stats.requests, stats.completions, stats.retries, stats.failures) == (1, 2, 0, 0)
    assert (stats.prompt_tokens, stats.generated_tokens, stats.cached_prompt_tokens) == (10, 6, 4)
    assert stats.seconds > 0


PASSING: dict[str, Step] = {
    "429": fail(429, Retry_After="0"),
    "500": fail(500),
    "503 without a body": lambda _: Reply(503),
    "408": fail(408),
    "a redirect to no address": fail(302, Location="gateway:8443/v1"),
    "not JSON": send(b"<html>bad gateway</html>"),
    "half a JSON": send(b'{"choices": [{"mess'),
    "nested beyond reason": send(b"[" * 100_000),
    "not UTF-8": send(b'{"choices": "\xff\xfe"}'),
    "not an object": send(b"[1]"),
    "an error under status 200": send(b'{"error": {"message": "worker died"}}'),
    "no choices": send(b'{"choices": []}'),
    "choices of no shape": send(b'{"choices": [3]}'),
    "no text": send(b'{"choices": [{"message": {"content": null}, "finish_reason": "stop"}]}'),
    "filtered": lambda _: answer("half a", finish="content_filter"),
    "aborted": lambda _: answer("half a", finish="abort"),
    "ended with an error": lambda _: answer("half a", finish="error"),
    "not the gzip it claims to be": lambda _: Reply(body=b"plain", headers={"Content-Encoding": "gzip"}),
    "dies in mid-answer": lambda _: Reply(body=b"x" * 1000, cut=True),
}


@pytest.mark.parametrize("fault", PASSING)
def test_a_transient_fault_is_retried(fault: str) -> None:
    with endpoint(PASSING[fault], PASSING[fault]) as server:
        [completions], engine = run(server, ask("hi"))
    assert completions == [Completion("hi #0", "stop")]
    assert engine.stats.retries == 2
    assert engine.stats.failures == 0
    assert len(server.seen) == 3
    assert server.seen[0].body == server.seen[2].body, "a retry asks for the same sample again"


@pytest.mark.parametrize("fault", PASSING)
def test_a_persistent_fault_fails_only_its_own_request(fault: str) -> None:
    def step(seen: Seen) -> Reply:
        return PASSING[fault](seen) if seen.body["messages"][-1]["content"] == "bad" else echo(seen)

    with endpoint(then=step) as server:
        results, engine = run(server, ask("one"), ask("bad"), ask("two"))
    assert results[0] == [Completion("one #0", "stop")]
    assert results[2] == [Completion("two #0", "stop")]
    assert isinstance(results[1], EngineError)
    assert server.url in str(results[1])
    assert "3 tries" in str(results[1])
    assert [s.body["messages"][-1]["content"] for s in server.seen].count("bad") == 3
    assert (engine.stats.retries, engine.stats.failures, engine.stats.completions) == (2, 1, 2)


def test_a_call_that_times_out_is_retried() -> None:
    release = threading.Event()

    def hang(_: Seen) -> Reply:
        release.wait(10)
        return answer("late")

    with endpoint(hang) as server:
        [completions], engine = run(server, ask("hi"), timeout=0.2)
        release.set()
    assert completions == [Completion("hi #0", "stop")]
    assert engine.stats.retries == 1


def test_a_retry_waits_as_long_as_the_endpoint_requests() -> None:
    arrivals = []

    def note(seen: Seen) -> Reply:
        arrivals.append(time.monotonic())
        return fail(429, Retry_After="1")(seen) if len(arrivals) == 1 else echo(seen)

    with endpoint(then=note) as server:
        [completions], _ = run(server, ask("hi"))
    assert completions == [Completion("hi #0", "stop")]
    assert arrivals[1] - arrivals[0] >= 0.99


def test_retry_after_may_be_seconds_or_a_date_and_is_0_if_invalid() -> None:
    assert retry_after({"retry-after": "12.5"}) == 12.5
    assert 3500 < retry_after({"retry-after": "Fri, 31 Dec 2100 23:59:59 GMT"}) <= 3600
    assert retry_after({"retry-after": "Fri, 31 Dec 1999 23:59:59 GMT"}) == 0
    for nonsense in ("", "soon", "nan", "-3", "Mon, 1 Jan 99999999999 00:00:00 GMT"):
        assert retry_after({"retry-after": nonsense}) == 0


def test_missing_choices_are_requested_again_with_other_seeds() -> None:
    def one(seen: Seen) -> Reply:
        return answer(f"seed {seen.body['seed']}")

    with endpoint(then=one) as server:
        [completions], engine = run(server, ask(n=3))
    assert [s.body["n"] for s in server.seen] == [3, 2, 1]
    assert [c.text for c in completions] == [f"seed {s.body['seed']}" for s in server.seen]
    assert len({s.body["seed"] for s in server.seen}) == 3
    assert engine.stats.completions == 3


def test_samples_are_in_order_and_each_call_requests_at_most_n_per_call() -> None:
    def backwards(seen: Seen) -> Reply:
        reply = json.loads(echo(seen).body)
        reply["choices"].reverse()
        return Reply(body=json.dumps(reply).encode())

    with endpoint(then=backwards) as server:
        [completions], _ = run(server, ask("q", n=5), n_per_call=2)
    assert [s.body["n"] for s in server.seen] == [2, 2, 1]
    assert [c.text for c in completions] == ["q #0", "q #1", "q #0", "q #1", "q #0"]


def test_choices_before_a_filtered_one_are_kept_and_only_the_others_are_requested_again() -> None:
    def filtered(seen: Seen) -> Reply:
        reply = json.loads(echo(seen).body)
        reply["choices"][2]["finish_reason"] = "content_filter"
        return Reply(body=json.dumps(reply).encode())

    with endpoint(filtered) as server:
        [completions], engine = run(server, ask("q", n=4))
    assert [one.text for one in completions] == ["q #0", "q #1", "q #0", "q #1"]
    assert [seen.body["n"] for seen in server.seen] == [4, 2]
    assert engine.stats.retries == 0


def test_surplus_choices_are_dropped() -> None:
    with endpoint(then=lambda _: answer("a", "b", "c")) as server:
        [completions], engine = run(server, ask(n=2))
    assert [c.text for c in completions] == ["a", "b"]
    assert engine.stats.completions == 2


def test_concurrent_calls_are_limited_and_results_match_their_requests() -> None:
    gate = threading.Barrier(3)

    def together(seen: Seen) -> Reply:
        gate.wait(20)  # passes only if three calls are in progress at once
        time.sleep(0.2)  # a fourth call would arrive during this time
        return echo(seen)

    with endpoint(then=together) as server:
        results, _ = run(server, *(ask(f"q{i}", task=str(i)) for i in range(12)), concurrency=3)
    assert [r[0].text for r in results] == [f"q{i} #0" for i in range(12)]
    assert server.most_at_once == 3


@pytest.mark.parametrize(
    ("reason", "text", "expected"),
    [
        ("stop", "ab", Completion("ab", "stop")),
        (None, "ab", Completion("ab", "stop")),
        ("length", "ab", Completion("ab", "length")),
        ("length", None, Completion("", "length")),
        ("length", "ab\nQ: more", Completion("ab", "stop")),
    ],
)
def test_finish_reasons_and_stop_strings(reason: str | None, text: str | None, expected: Completion) -> None:
    choice = {"message": {"content": text}, "finish_reason": reason}
    with endpoint(send(json.dumps({"choices": [choice]}).encode())) as server:
        [completions], _ = run(server, ask(stop=["\nQ:"]))
    assert completions == [expected]


@pytest.mark.parametrize("extra", [{}, {"choices": [{"message": {"content": "half"}}]}])
def test_an_error_with_status_200_fails_the_request_and_is_reported(extra: dict[str, Any]) -> None:
    body = json.dumps({"error": {"message": "worker died", "code": 502}, **extra}).encode()
    with endpoint(then=send(body)) as server:
        [error], _ = run(server, ask())
    assert isinstance(error, EngineError)
    assert "worker died" in str(error)


def test_a_refused_request_fails_without_a_retry_and_no_other_request_fails() -> None:
    with endpoint(fail(400, "maximum context length is 4096 tokens")) as server:
        results, engine = run(server, ask("too long"), ask("fine", task="t2"), concurrency=1)
    assert isinstance(results[0], EngineError)
    assert "maximum context length" in str(results[0])
    assert results[1] == [Completion("fine #0", "stop")]
    assert engine.stats.retries == 0


def test_a_prompt_that_is_forbidden_after_others_were_answered_fails_alone() -> None:
    with endpoint(echo, fail(403, "your input was flagged")) as server:
        results, _ = run(server, ask("fine"), ask("flagged", task="t2"), ask("fine", task="t3"), concurrency=1)
    assert isinstance(results[1], EngineError)
    assert "your input was flagged" in str(results[1])
    assert results[0] == results[2] == [Completion("fine #0", "stop")]


@pytest.mark.parametrize(
    ("status", "remedy"),
    [(401, "OPENAI_API_KEY"), (403, "OPENAI_API_KEY"), (404, "model 'teacher'"), (301, "base_url")],
)
def test_a_permanent_error_ends_the_stage_with_the_address_the_status_and_a_remedy(status: int, remedy: str) -> None:
    with endpoint(fail(status, f"Incorrect key {KEY}")) as server:
        [error], engine = run(server, ask())
    assert isinstance(error, UserError)
    assert server.url in str(error)
    assert str(status) in str(error)
    assert remedy in str(error)
    assert engine.stats.retries == 0


def test_a_403_at_the_first_call_is_reported_in_the_endpoint_s_own_words_and_an_empty_account_as_such() -> None:
    with endpoint(fail(403, "your input was flagged")) as server:
        [error], _ = run(server, ask())
    assert isinstance(error, UserError)
    assert "or this prompt (status 403: your input was flagged); set a valid key in" in str(error)
    body = json.dumps({"error": {"message": "no credit", "code": "insufficient_quota"}}).encode()
    with endpoint(lambda _: Reply(403, body)) as server:
        [error], _ = run(server, ask())
    assert isinstance(error, UserError)
    assert "the quota of the key OPENAI_API_KEY is used up: no credit; raise it" in str(error)


def test_without_api_key_env_no_key_is_sent_and_a_401_names_the_param() -> None:
    with endpoint(fail(401)) as server:
        [error], _ = run(server, ask(), api_key_env=None)
        assert "authorization" not in server.seen[0].headers
    assert isinstance(error, UserError)
    assert "api_key_env" in str(error)


def test_an_unreachable_endpoint_at_the_first_call_ends_the_stage() -> None:
    with endpoint() as server:
        pass  # the port is now closed
    [error], _ = run(server, ask())
    assert isinstance(error, UserError)
    assert f"no endpoint answers at {server.url}" in str(error)


def test_an_endpoint_that_becomes_unreachable_later_fails_requests_but_not_the_stage() -> None:
    async def work(server: Endpoint) -> tuple[list[Completion], BaseException]:
        engine = OpenAiEngine(config(server.url))
        first = await engine.generate(ask("one"))
        await asyncio.to_thread(server.stop)
        [second] = await asyncio.gather(engine.generate(ask("two")), return_exceptions=True)
        await engine.close()
        assert isinstance(second, BaseException)
        return first, second

    server = Endpoint([], lambda seen: Reply(200, echo(seen).body, {"Connection": "close"}))
    server.start()
    first, second = asyncio.run(work(server))
    assert first == [Completion("one #0", "stop")]
    assert isinstance(second, EngineError)


def test_requests_with_allowed_answers_are_refused() -> None:
    with endpoint() as server:
        [error], _ = run(server, ask(allowed=["a", "b"]))
    assert isinstance(error, UserError)
    assert "engine openai" in str(error)
    assert server.seen == []


def test_a_key_is_read_from_the_environment_first_then_from_the_file(tmp_path: Path) -> None:
    file = tmp_path / "keys.cfg"
    file.write_text('# keys\nOTHER_KEY: "no"\nOPENAI_API_KEY: "sk-file"\nTEACHER=\'sk-teacher\'\n', encoding="utf-8")
    assert find_key("OPENAI_API_KEY", str(file), {"OPENAI_API_KEY": "sk-env"}) == "sk-env"
    assert find_key("OPENAI_API_KEY", str(file), {}) == "sk-file"
    assert find_key(None, str(file), {"OPENAI_API_KEY": "sk-env"}) == "sk-file"
    assert find_key("TEACHER", str(file), {}) == "sk-teacher"
    assert find_key(None, None, {"OPENAI_API_KEY": "sk-env"}) is None


@pytest.mark.parametrize("line", ["\ufeffOPENAI_API_KEY: sk-file", "export OPENAI_API_KEY=sk-file"])
def test_a_key_file_may_start_with_a_byte_order_mark_or_be_a_shell_script(tmp_path: Path, line: str) -> None:
    (tmp_path / "key").write_text(line, encoding="utf-8")
    assert find_key("OPENAI_API_KEY", str(tmp_path / "key"), {}) == "sk-file"


def test_errors_about_keys_name_the_variable_or_the_file_but_not_the_key(tmp_path: Path) -> None:
    file = tmp_path / "keys.cfg"
    for place in (None, str(file)):
        with pytest.raises(UserError, match="TEACHER is not set"):
            find_key("TEACHER", place, {})
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"keys\.cfg cannot be read"):
        find_key("TEACHER", str(file), {})
    with pytest.raises(UserError, match="TEACHER") as caught:
        find_key("TEACHER", None, {"TEACHER": f"{KEY}\nX-Header: injected"})
    assert KEY not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("localhost:8000/v1", "localhost"),
        ("ftp://host/v1", "host"),
        ("http://user:sk-secret@host/v1", "host"),
        ("user:sk-secret@host:8000/v1", "base_url 'host:8000/v1' is not an http(s) address"),
        ("http://user:sk-secret@:8000/v1", "base_url"),
        ("https://host/v1?api-key=sk-secret", "host"),
        ("http://a\x00b/v1", "base_url"),
        ("http://localhost:99999/v1", "base_url 'localhost:99999' is not an http(s) address"),
        ("", "base_url"),
    ],
)
def test_unsupported_addresses_are_refused_without_repeating_secrets(url: str, place: str) -> None:
    with pytest.raises(UserError, match="base_url") as caught:
        OpenAiEngine(config(url))
    assert place in str(caught.value)
    assert "sk-secret" not in str(caught.value)


@pytest.mark.parametrize("status", [200, 301, 400, 401, 403, 404, 429, 500])
def test_the_key_appears_in_no_error_repr_count_or_log(status: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    with endpoint(then=fail(status, f"you sent {KEY}")) as server:
        [error], engine = run(server, ask())
    assert isinstance(error, EngineError | UserError)
    shown = [repr(error), str(error), repr(engine), str(asdict(engine.stats)), caplog.text]
    shown += traceback.format_exception(error)
    assert not [text for text in shown if KEY in text]
    assert server.seen[0].headers["authorization"].endswith(KEY), "it was sent, so it could have leaked"
