"""Limits on what an endpoint can do to a run: redirects, quotas, huge answers, echoed keys; also Azure's addresses."""

from __future__ import annotations

import asyncio
import gzip
import json
import shutil
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from selfimprove.core.address import LONGEST_ANSWER
from selfimprove.core.errors import UserError
from selfimprove.core.journal import Journal
from selfimprove.engines.base import Completion, EngineError
from selfimprove.engines.episodes import play_all
from selfimprove.engines.journal import JournaledEngine
from selfimprove.engines.openai import OpenAiEngine
from tests.engines.http_endpoint import Reply, Seen, answer, echo, endpoint
from tests.engines.test_openai import KEY, ask, config, fail, run
from tests.support.http_server import Handler, Server


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]"])
def test_a_local_endpoint_with_https_is_called_without_the_environment_s_proxy(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_PROXY")
    monkeypatch.delenv("no_proxy", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{proxy.getsockname()[1]}")
        engine = OpenAiEngine(config(f"https://{host}:9/v1", tries=1, timeout=2.0))  # nothing listens there
        with pytest.raises((EngineError, UserError)):
            asyncio.run(engine.generate(ask("one")))
        proxy.setblocking(False)
        with pytest.raises(BlockingIOError):
            proxy.accept()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl, which makes the certificate, is not installed")
def test_a_certificate_that_is_not_accepted_ends_the_stage_and_names_the_setting(tmp_path: Path) -> None:
    files = {"keyout": tmp_path / "key.pem", "out": tmp_path / "own.pem"}
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    for name, file in files.items():
        words += [f"-{name}", str(file)]
    subprocess.run(words, capture_output=True, check=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files["out"], files["keyout"])
    server = Server(Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.start()
    try:
        engine = OpenAiEngine(config(f"https://localhost:{server.server_port}/v1", tries=1))
        with pytest.raises(UserError, match=r"certificate of https://localhost.* is not accepted .*SSL_CERT_FILE"):
            asyncio.run(engine.generate(ask("one")))
    finally:
        server.stop()


@pytest.mark.parametrize("proxy", ["http://127.0.0.1:9", "socks5://127.0.0.1:9"])
def test_a_local_endpoint_is_called_without_the_environment_s_proxy(
    proxy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_PROXY")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("HTTP_PROXY", proxy)
    with endpoint(then=echo) as server:
        [answers], _ = run(server, ask("one"))
    assert answers[0].text == "one #0"


def test_an_endpoint_s_own_temperature_and_max_tokens_replace_the_stage_s() -> None:
    with endpoint(then=echo) as server:
        run(server, ask(temperature=1.0, max_tokens=1000))
        run(server, ask(temperature=1.0, max_tokens=1000), temperature=0.0, max_tokens=512)
    assert [(seen.body["temperature"], seen.body["max_tokens"]) for seen in server.seen] == [(1.0, 1000), (0.0, 512)]


@pytest.mark.parametrize("tries", [1, 2, 5])
def test_a_request_fails_after_the_configured_number_of_tries(tries: int) -> None:
    with endpoint(then=fail(500)) as server:
        [error], engine = run(server, ask(), tries=tries)
    assert isinstance(error, EngineError)
    assert (len(server.seen), engine.stats.retries) == (tries, tries - 1)


def test_waits_between_tries_double_from_backoff_up_to_backoff_max(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        waits.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", note)
    with endpoint(then=fail(500)) as server:
        run(server, ask(), tries=6, backoff=2.0, backoff_max=20.0)
    waits = [seconds for seconds in waits if seconds >= 1]
    assert len(waits) == 5
    assert all(low <= wait <= min(low + 2, 20) for low, wait in zip([2, 4, 8, 16, 20], waits, strict=True))


@pytest.mark.parametrize("status", [302, 307, 308])
def test_a_redirect_after_earlier_answers_is_retried_and_never_followed(status: int) -> None:
    with endpoint(then=echo) as elsewhere:
        with endpoint(echo, fail(status, location=f"{elsewhere.url}/chat/completions")) as server:

            async def work() -> list[Completion]:
                engine = OpenAiEngine(config(server.url))
                await engine.generate(ask("one"))
                return await engine.generate(ask("two"))

            assert asyncio.run(work())[0].text == "two #0"
        assert elsewhere.seen == []


@pytest.mark.parametrize(("status", "code"), [(429, "insufficient_quota"), (402, "invalid_request_error"), (402, 402)])
def test_an_exhausted_quota_ends_the_stage_without_a_retry(status: int, code: str | int) -> None:
    """402, Payment Required, needs no code: DeepSeek's is that of any invalid request, OpenRouter's the status."""
    body = json.dumps({"error": {"message": "You exceeded your quota.", "code": code}}).encode()
    with endpoint(echo, then=lambda _: Reply(status, body)) as server:

        async def work() -> BaseException:
            engine = OpenAiEngine(config(server.url))
            await engine.generate(ask("one"))
            [error] = await asyncio.gather(engine.generate(ask("two")), return_exceptions=True)
            assert isinstance(error, BaseException)
            return error

        error = asyncio.run(work())
    assert isinstance(error, UserError)
    assert "the quota of the key OPENAI_API_KEY is used up: You exceeded your quota.; raise it" in str(error)
    assert len(server.seen) == 2


def test_outstanding_answers_are_awaited_and_kept_when_the_stage_ends(tmp_path: Path) -> None:
    """One of four concurrent calls exceeds the quota; three are answered later. The next run repeats the failed one."""
    slow, quota = threading.Event(), b'{"error": {"code": "insufficient_quota"}}'

    def teacher(seen: Seen) -> Reply:
        if seen.body["messages"][-1]["content"] == "3":
            while len(server.seen) < 4:
                time.sleep(0.01)
            threading.Timer(0.3, slow.set).start()
            return Reply(429, quota)
        assert slow.wait(30)
        return echo(seen)

    async def work(url: str) -> list[str]:
        with Journal(tmp_path / "j") as journal:
            engine = JournaledEngine(OpenAiEngine(config(url)), journal, "teacher")

            async def one(text: str) -> str:
                return (await engine.generate(ask(text, task=text)))[0].text

            try:
                return list(await play_all(["1", "2", "3", "4"], one, concurrency=4))
            finally:
                await engine.close()

    with endpoint(then=teacher) as server, pytest.raises(UserError, match="the quota"):
        asyncio.run(work(server.url))
    with endpoint() as well:
        assert asyncio.run(work(well.url)) == ["1 #0", "2 #0", "3 #0", "4 #0"]
    assert [seen.body["messages"][-1]["content"] for seen in well.seen] == ["3"]


def test_answered_calls_of_a_request_are_kept_when_a_later_call_fails(tmp_path: Path) -> None:
    """Five samples in calls of two, one of which returns one choice: the next run requests only the missing ones."""

    async def work(url: str) -> list[str]:
        with Journal(tmp_path / "j") as journal:
            engine = JournaledEngine(OpenAiEngine(config(url, n_per_call=2, tries=1)), journal, "teacher")
            try:
                return [completion.text for completion in await engine.generate(ask("q", n=5))]
            finally:
                await engine.close()

    refused = pytest.raises(EngineError, match="refuses the request")
    with endpoint(lambda _: answer("a", "b"), lambda _: answer("c"), fail(400)) as server, refused:
        asyncio.run(work(server.url))
    with endpoint(lambda _: answer("d", "e")) as well:
        assert asyncio.run(work(well.url)) == ["a", "b", "c", "d", "e"]
        assert asyncio.run(work(well.url)) == ["a", "b", "c", "d", "e"]
    assert [(seen.body["n"], seen.body["seed"]) for seen in well.seen] == [(2, server.seen[2].body["seed"])]


def test_a_prompt_that_is_forbidden_fails_alone_in_a_resumed_run_that_asks_nothing_else(tmp_path: Path) -> None:
    async def work(url: str) -> list[Any]:
        with Journal(tmp_path / "j") as journal:
            engine = JournaledEngine(OpenAiEngine(config(url, concurrency=1)), journal, "teacher")
            requests = [engine.generate(ask(text, task=text)) for text in ("fine", "flagged")]
            try:
                return await asyncio.gather(*requests, return_exceptions=True)
            finally:
                await engine.close()

    with endpoint(echo, then=fail(403, "your input was flagged")) as server:
        first, again = asyncio.run(work(server.url)), asyncio.run(work(server.url))
    assert first[0] == again[0]
    assert [type(one) for one in (first[1], again[1])] == [EngineError, EngineError]
    assert str(first[1]) == str(again[1])
    assert len(server.seen) == 3


def azure_api(seen: Seen) -> Reply:
    assert seen.path == "/v1/openai/deployments/gpt/chat/completions?api-version=2024-10-21"
    assert seen.headers["api-key"] == KEY
    assert "authorization" not in seen.headers
    return echo(seen)


@pytest.mark.parametrize(
    ("tail", "changes"),
    [
        ("", {"api_version": "2024-10-21"}),
        ("?api-version=2024-10-21", {}),
        ("/chat/completions?api-version=2024-10-21", {}),
    ],
)
def test_azure_calls_contain_the_api_version_and_the_api_key_header(tail: str, changes: dict[str, Any]) -> None:
    with endpoint(then=azure_api) as server:
        server.url += f"/openai/deployments/gpt{tail}"
        [completions], _ = run(server, ask("2+2?"), **changes)
    assert completions[0].text == "2+2? #0"


@pytest.mark.parametrize("packed", [False, True])
def test_answers_over_32_mib_are_refused_whether_compressed_or_not(packed: bool) -> None:
    huge = json.dumps({"choices": [{"message": {"content": "x" * (LONGEST_ANSWER + 1)}}]}).encode()
    headers = {"Content-Encoding": "gzip"} if packed else {}
    with endpoint(then=lambda _: Reply(body=gzip.compress(huge, 1) if packed else huge, headers=headers)) as server:
        [error], _ = run(server, ask(), tries=2)
    assert isinstance(error, EngineError)
    assert "the answer is larger than 32 MiB (2 tries)" in str(error)
    assert server.seen[0].headers["accept-encoding"] == "identity"


def test_headers_and_cookies_that_are_not_ascii_are_ignored() -> None:
    odd = {"Set-Cookie": "n=caf\xe9; Path=/", "X-Name": "caf\xe9"}
    with endpoint(then=lambda seen: Reply(200, echo(seen).body, odd)) as server:

        async def work() -> list[Completion]:
            engine = OpenAiEngine(config(server.url))
            await engine.generate(ask("one"))
            return await engine.generate(ask("two"))

        assert asyncio.run(work())[0].text == "two #0"


def test_a_key_echoed_by_the_endpoint_is_removed_from_completions() -> None:
    with endpoint(then=lambda _: answer(f"Your key is {KEY}.")) as server:
        [completions], _ = run(server, ask())
    assert completions[0].text == "Your key is [key]."


def test_a_placeholder_for_a_key_is_left_in_completions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "EMPTY")
    with endpoint(then=lambda _: answer("The box is EMPTY.")) as server:
        [completions], _ = run(server, ask())
    assert completions[0].text == "The box is EMPTY."
    assert server.seen[0].headers["authorization"] == "Bearer EMPTY"


def test_control_characters_from_an_endpoint_are_removed_from_errors() -> None:
    with endpoint(then=fail(400, "no\x1b[2J\x07\u202e way")) as server:
        [error], _ = run(server, ask())
    assert isinstance(error, EngineError)
    assert str(error).isprintable()
