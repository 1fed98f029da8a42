"""Google search through SerpAPI, as in the original (docs/spin.md, S22). Optional: it costs money and needs a key.

The result is the answer box's ``answer``, else its ``snippet``, else its first highlighted phrase, else the snippet of
the first organic hit that has one. A page with none of these gives None (the original uses only the first hit, and
raises if there is none).

The key is read from the environment when the tool is created, and is used only in the request.
"""

import logging
import os
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from selfimprove.core.errors import UserError
from selfimprove.core.params import Section, VariableName


class SerpApiParams(Section):
    """Settings of requests to the service."""

    url: str = Field(default="https://serpapi.com/search.json", pattern=r"^https?://")
    api_key_env: VariableName = Field(
        default="SERPAPI_API_KEY", description="environment variable, in capital letters, that holds the API key"
    )
    timeout: float = Field(default=20.0, gt=0, description="timeout of one try in seconds")
    tries: int = Field(default=4, ge=1)
    backoff: float = Field(default=1.0, ge=0, description="seconds before the first retry; doubles with each retry")


class SearchFailed(Exception):
    """The service gave no result: the tries are exhausted, or the request was refused. Never contains the key."""


class SerpApiSearch:
    """The tool. Without a key its creation fails, so that a run ends before any search.

    Raises:
        UserError: the key is not set.
    """

    def __init__(self, params: SerpApiParams, environment: Mapping[str, str] = os.environ) -> None:
        import httpx

        from selfimprove.core.address import client_settings

        self._key = environment.get(params.api_key_env, "").strip()
        if not self._key:
            raise UserError(
                f"the search key {params.api_key_env} is not set; export {params.api_key_env}=<key>, or set local or "
                "replay instead of serpapi in tools.use."
            )
        self._params = params
        # httpx logs URLs, which contain the key.
        logging.getLogger("httpx").setLevel(logging.WARNING)
        with client_settings():
            self._client = httpx.Client(timeout=params.timeout)

    def __call__(self, query: str) -> str | None:
        """See ``tools.search.Tool``.

        Raises:
            SearchFailed: no result after ``tries`` tries, or the request was refused.
            UserError: the key is refused, which would affect every query.
        """
        import httpx
        from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_exponential

        retrying = Retrying(
            retry=retry_if_exception_type((_Passing, httpx.TransportError)),
            stop=stop_after_attempt(self._params.tries),
            wait=wait_exponential(multiplier=self._params.backoff, max=30),
            reraise=True,
        )
        try:
            page = retrying(self._page, query)
        except (_Passing, httpx.HTTPError) as error:
            # httpx's messages contain the URL, and hence the key.
            said = str(error) if isinstance(error, _Passing) else type(error).__name__
            raise SearchFailed(f"{self._params.url}: {said} ({self._params.tries} tries)") from None
        return pick(page)

    def close(self) -> None:
        self._client.close()

    def _page(self, query: str) -> dict[str, Any]:
        asked = {"engine": "google", "q": query, "google_domain": "google.com", "gl": "us", "hl": "en"}
        response = self._client.get(self._params.url, params={**asked, "api_key": self._key})
        if response.status_code in (401, 403):
            raise UserError(
                f"{self._params.url} rejects the key {self._params.api_key_env} (status {response.status_code}); set "
                "that variable to a valid key."
            )
        if response.status_code == 429 or response.status_code >= 500:
            raise _Passing(f"status {response.status_code}")
        if response.status_code != 200:
            raise SearchFailed(f"{self._params.url}: status {response.status_code}")
        try:
            page = response.json()
        except ValueError:
            raise _Passing("the body is not JSON") from None
        if not isinstance(page, dict):
            raise _Passing("the body is no result page")
        return page


def pick(page: Mapping[str, Any]) -> str | None:
    """The text in a result page that answers the query; None if there is none."""
    box = page.get("answer_box")
    boxes = box if isinstance(box, list) else [box]
    for part in boxes:
        if isinstance(part, dict):
            highlighted = part.get("snippet_highlighted_words")
            phrases = highlighted if isinstance(highlighted, list) else []
            for value in (part.get("answer"), part.get("snippet"), *phrases[:1]):
                told = str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value
                if isinstance(told, str) and told.strip():
                    return told.strip()
    hits = page.get("organic_results")
    for hit in hits if isinstance(hits, list) else []:
        snippet = hit.get("snippet") if isinstance(hit, dict) else None
        if isinstance(snippet, str) and snippet.strip():
            return snippet.strip()
    return None


class _Passing(Exception):
    """A temporary failure, which is retried."""
