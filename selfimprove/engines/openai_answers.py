"""Parses the answers of OpenAI-compatible endpoints: choices, errors in the usual shapes, counts, headers."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from http.cookiejar import Cookie, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any

from selfimprove.core.records import Finish, plain_text
from selfimprove.engines.base import Completion, first_stop

if TYPE_CHECKING:
    from urllib.request import Request

    import httpx

LONGEST_RETRY_AFTER = 3600.0
"""Maximum seconds that a Retry-After header is followed."""

BROKEN_OFF = ("abort", "error")
"""Values of finish_reason, vLLM's and OpenRouter's, of an answer whose generation failed after the text so far."""


class Passing(Exception):
    """A transient failure: the call may be retried after ``retry_after`` seconds."""

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class AsciiCookies(DefaultCookiePolicy):
    """Ignores cookies that are not ASCII: httpx could not send them with the next call."""

    def set_ok(self, cookie: Cookie, request: Request) -> bool:
        return f"{cookie.name}{cookie.value}{cookie.path}".isascii() and super().set_ok(cookie, request)


def completion_of(choice: dict[str, Any], stop: Any) -> Completion:
    """One choice of an answer, cut before the first stop string. Raises: Passing: it has no text, or was broken off."""
    reason = choice.get("finish_reason")
    message = choice.get("message")
    text = message.get("content") if isinstance(message, dict) else None
    finish: Finish = "length" if reason in ("length", "max_tokens") else "stop"
    if reason == "content_filter":
        raise Passing("the endpoint's content filter withheld an answer")
    if reason in BROKEN_OFF:
        raise Passing(f"the endpoint broke off an answer (finish_reason {reason})")
    if text is None and isinstance(message, dict) and finish == "length":
        text = ""  # a model may use up its tokens before the answer begins
    if not isinstance(text, str):
        raise Passing("a choice holds no text")
    text = plain_text(text)
    found = first_stop(text, stop)
    return Completion(text[: found[0]], "stop") if found else Completion(text, finish)


def error_of(response: httpx.Response) -> tuple[str, str]:
    """The endpoint's message, from the usual shapes of an error body, and its code (or type); "" if missing."""
    try:
        body = json.loads(response.content)
    except (ValueError, RecursionError):
        return "", ""
    error = body.get("error", body) if isinstance(body, dict) else body
    if not isinstance(error, dict):
        return (error if isinstance(error, str) else ""), ""
    said = error.get("message", error.get("detail", ""))
    code = str(error.get("code") or error.get("type") or "") if error is not body else ""
    return (said if isinstance(said, str) else ""), code


def retry_after(headers: Mapping[str, str]) -> float:
    """Seconds given by a Retry-After header, a number or a date; 0 without one."""
    value = headers.get("retry-after", "")
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, TypeError, OverflowError):
            return 0.0
    return min(max(seconds, 0.0), LONGEST_RETRY_AFTER) if seconds == seconds else 0.0


def count_of(value: Any) -> int:
    """A number of tokens; 0 if the value is not one."""
    return value if isinstance(value, int) and value >= 0 else 0
