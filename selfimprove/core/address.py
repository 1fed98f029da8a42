"""Checks the addresses of servers that params name, and the environment's settings for calling them; reads answers."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from urllib.request import getproxies

import httpx

from selfimprove.core.errors import UserError

LOCAL = ("localhost", "127.0.0.1", "::1")
"""Hosts that mean this machine. No proxy can reach a server there, so its clients use none."""

DIRECT: dict[str, httpx.AsyncBaseTransport | None] = {
    f"all://[{host}]" if ":" in host else f"all://{host}": None for host in LOCAL
}
"""``mounts`` of an httpx client that reads the environment's settings, but calls ``LOCAL`` without its proxies."""

LONGEST_ANSWER = 32 << 20
"""Bytes of a decompressed answer that are read; a longer one would fill memory."""


class TooLong(Exception):
    """A server's answer is longer than ``LONGEST_ANSWER``."""


def checked_address(key: str, address: str, example: str, options: Collection[str] = ()) -> httpx.URL:
    """The address at a key of params.yaml, parsed.

    Args:
        example: an address to show to a user whose own is wrong.
        options: the query parameters that it may contain.

    Raises:
        UserError: it is not a plain http(s) address. The message repeats no password and no query.
    """
    try:
        url = httpx.URL(address)
        _ = url.host  # decoded here, which may fail
    except (httpx.InvalidURL, UnicodeError):
        raise UserError(f"{key} is not an address; write it like {example}.") from None
    port = 80 if url.port is None else url.port
    if url.scheme not in ("http", "https") or not url.host or not 0 < port < 65536:
        # Without a scheme, the password is part of what httpx takes for a path.
        bare = str(url.copy_with(query=None, fragment=None)).rpartition("@")[2]
        shown = url.netloc.decode("ascii") if url.host else bare
        raise UserError(f"{key} {shown!r} is not an http(s) address; write it like {example}.")
    if url.userinfo or url.fragment or set(url.params) - set(options):
        raise UserError(
            f"{key} at {url.host} contains a password, a query or a fragment; write the plain address, like {example}. "
            "Keys belong in environment variables."
        )
    return url


def reads_environment(url: httpx.URL) -> bool:
    """Whether an httpx client of this address reads the environment's settings (``trust_env``).

    With https they include certificates, so a client of a local server reads them too; ``DIRECT`` excludes proxies.
    """
    return url.scheme == "https" or url.host not in LOCAL


@contextmanager
def client_settings(*, read: bool = True) -> Iterator[None]:
    """Around the creation of an HTTP client, which reads proxies and certificates from the environment, if ``read``.

    Raises:
        UserError: a proxy's address is wrong or needs another package, or a certificate file is missing.
    """
    try:
        if read:
            _check_ports()
        yield
    except (ImportError, OSError, ValueError, httpx.InvalidURL) as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"the environment's proxy or certificate settings can't be used ({reason}); correct or unset ALL_PROXY, "
            "HTTP_PROXY, HTTPS_PROXY, NO_PROXY (also in lower case), SSL_CERT_FILE or SSL_CERT_DIR."
        ) from None


def _check_ports() -> None:
    """Raise a ``ValueError`` for a proxy whose port no socket has: httpx notices it in a call, in a task of its own."""
    for kind, address in getproxies().items():
        if kind in ("http", "https", "all"):
            port = httpx.URL(address if "://" in address else f"http://{address}").port
            if port is not None and port > 65535:
                raise ValueError(f"port {port} of {kind.upper()}_PROXY exceeds 65535")


async def whole(answer: httpx.Response) -> httpx.Response:
    """A streamed answer with its whole body, decompressed. Raises: TooLong."""
    body = bytearray()
    async for part in answer.aiter_bytes(1 << 16):
        body += part
        if len(body) > LONGEST_ANSWER:
            raise TooLong(f"the answer is larger than {LONGEST_ANSWER >> 20} MiB")
    headers = [(name, value) for name, value in answer.headers.raw if name.lower() != b"content-encoding"]
    return httpx.Response(answer.status_code, headers=headers, content=bytes(body))
