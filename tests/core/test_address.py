"""Addresses of servers in params: what no address is, is refused in one sentence."""

import pytest

from selfimprove.core.address import checked_address
from tests.support.sentences import refused_with


@pytest.mark.parametrize("address", ["https://xn--a", "http://\ud800", "http://[::1", "no address"])
def test_text_that_is_no_address_is_refused(address: str) -> None:
    with refused_with("^base_url .*write it like http://localhost:8000"):
        checked_address("base_url", address, "http://localhost:8000")
