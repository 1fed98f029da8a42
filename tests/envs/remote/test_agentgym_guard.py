"""How the environment server handles clients that stall, flood it, or are web pages. All on 127.0.0.1."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import httpx
import pytest

from selfimprove.core.address import checked_address
from selfimprove.core.errors import UserError
from selfimprove.envs.remote.guard import BoundedProtocol
from selfimprove.envs.remote.server import address_of, listen
from tests.envs.remote.agentgym_servers import our_server
from tests.envs.remote.agentgym_worlds import textcraft

HALF = b"POST /create HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server with a limit of eight connections."""
    monkeypatch.setattr(BoundedProtocol, "most", 8)
    with our_server("textcraft", textcraft) as address:
        yield address


def test_an_empty_host_does_not_open_the_server_to_every_network() -> None:
    with pytest.raises(UserError, match="the host is empty; name an address"):
        listen("", 0)


@pytest.mark.parametrize("host", ["127.0.0.1", "node7", "::1"])
def test_the_address_that_make_serve_prints_can_be_given_as_env_server(host: str) -> None:
    assert checked_address("env.server", address_of(host, 36001), "http://127.0.0.1:36001").host == host


def connected(url: str, sent: bytes) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", httpx.URL(url).port or 0), timeout=20)
    client.sendall(sent)
    return client


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server waits only briefly for the rest of a request."""
    monkeypatch.setattr(BoundedProtocol, "patience", 0.2)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    "sent",
    [
        b"",
        HALF,
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" + HALF,
    ],
)
def test_the_connection_of_a_request_that_never_ends_is_closed(url: str, sent: bytes) -> None:
    with connected(url, sent) as client:
        while not hung_up(client):  # a complete earlier request is answered first
            continue


@pytest.mark.usefixtures("impatient")
def test_a_body_that_never_ends_is_answered_with_an_error(url: str) -> None:
    head = b"POST /create HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 99\r\n\r\n{"
    with connected(url, head) as client:
        assert b"the request did not end within 0.2 s." in b"".join(iter(lambda: client.recv(4096), b""))


def hung_up(client: socket.socket) -> bool:
    """Whether the server closes the connection instead of waiting for more."""
    try:
        return client.recv(1) == b""
    except ConnectionResetError:
        return True


def test_connections_beyond_the_limit_are_closed_and_freed_places_are_reused(
    url: str, capfd: pytest.CaptureFixture[str]
) -> None:
    crowd = [connected(url, b"") for _ in range(8)]
    for _ in range(20):
        with connected(url, b"") as one_more:
            assert hung_up(one_more)
    for client in crowd:
        client.close()
    until = time.monotonic() + 20
    while True:
        try:
            assert httpx.get(url).status_code == 200
            break
        except httpx.TransportError:
            assert time.monotonic() < until
            time.sleep(0.05)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("headers", "says"),
    [
        ({"Origin": "http://evil.example"}, "requests of web pages"),
        ({"Host": "evil.example"}, "this server is not called 'evil.example'"),
        ({"Content-Type": "text/plain"}, "content type must be application/json, not text/plain"),
    ],
)
def test_requests_that_only_a_web_page_sends_are_refused(url: str, headers: dict[str, str], says: str) -> None:
    assert says in httpx.post(f"{url}/create", content=b"{}", headers=headers).json()["error"]
    assert httpx.get(f"{url}/list_envs").json() == []


def test_create_needs_no_body(url: str) -> None:
    assert httpx.post(f"{url}/create").json()["id"] == 0
    assert httpx.post(f"{url}/create", json={}).json()["id"] == 1
