"""Checks the addresses of servers that params name."""

from collections.abc import Collection

import httpx

from selfimprove.core.errors import UserError


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
    if url.scheme not in ("http", "https") or not url.host or not 0 < (url.port or 80) < 65536:
        shown = url.netloc.decode("ascii") if url.host else str(url.copy_with(query=None, fragment=None))
        raise UserError(f"{key} {shown!r} is not an http(s) address; write it like {example}.")
    if url.userinfo or url.fragment or set(url.params) - set(options):
        raise UserError(
            f"{key} at {url.host} contains a password, a query or a fragment; write the plain address, like {example}. "
            "Keys belong in environment variables."
        )
    return url
