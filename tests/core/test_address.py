"""Addresses of servers in params: what no address is, is refused in one sentence."""

import httpx
import pytest

from selfimprove.core.address import checked_address, client_settings, reads_environment
from tests.support.sentences import refused_with


@pytest.mark.parametrize("address", ["https://xn--a", "http://\ud800", "http://[::1", "no address"])
def test_text_that_is_no_address_is_refused(address: str) -> None:
    with refused_with("^base_url .*write it like http://localhost:8000"):
        checked_address("base_url", address, "http://localhost:8000")


@pytest.mark.parametrize("address", ["http://h", "https://h/v1", "http://h:1", "http://h:65535", "http://h?v=1"])
def test_an_http_address_is_accepted_with_any_port_that_a_socket_has(address: str) -> None:
    assert str(checked_address("base_url", address, "http://localhost:8000", ["v"])) == address


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("ftp://h", "h"),
        ("http:///v1", "http:/v1"),
        ("http://h:0", "h:0"),
        ("http://h:65536", "h:65536"),
        ("name:secret@h:80?key=secret#secret", "h:80"),
    ],
)
def test_an_address_that_no_http_client_can_call_is_refused_without_its_secrets(address: str, shown: str) -> None:
    with refused_with(f"^base_url '{shown}' is not an http.s. address; write it like http://localhost:8000"):
        checked_address("base_url", address, "http://localhost:8000")


@pytest.mark.parametrize(
    ("address", "reads"),
    [
        ("http://127.0.0.1:8000/v1", False),
        ("http://localhost", False),
        ("http://[::1]:8000", False),
        ("http://10.0.0.7:8000", True),
        ("https://localhost:8443", True),
    ],
)
def test_only_a_client_of_a_local_server_without_tls_ignores_the_environment(address: str, reads: bool) -> None:
    assert reads_environment(httpx.URL(address)) is reads


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ALL_PROXY", "socks5://127.0.0.1:1080"),
        ("HTTP_PROXY", "foo://proxy"),
        ("HTTPS_PROXY", "http://127.0.0.1:65536"),
        ("NO_PROXY", "10.0.0.0/8,fe80::/10"),
        ("SSL_CERT_FILE", "/no/such/file.pem"),
    ],
)
def test_settings_that_no_client_can_use_are_refused_by_name(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for other in ("ALL_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(other, raising=False)
        monkeypatch.delenv(other.lower(), raising=False)
    monkeypatch.setenv(name, value)
    with refused_with(f"^the environment's proxy or certificate settings .*{name}"), client_settings():
        httpx.Client()


def test_a_client_that_reads_no_settings_does_not_check_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:65536")
    with client_settings(read=False):
        httpx.Client(trust_env=False)
