"""Any OpenAI-compatible endpoint as an engine: OpenAI itself, Azure OpenAI, vLLM's server, LM Studio, llama.cpp's.

One call is ``POST {base_url}/chat/completions``. Transient failures are retried with backoff (429, 5xx, redirects,
which are never followed, time-outs, broken connections, invalid or too large bodies); when the tries are used up, only
that request fails. Permanent failures (missing or refused key, exhausted quota, unknown model, nothing listening) end
the stage with one sentence. When a stage ends, including by Ctrl-C, outstanding answers are awaited and kept.

Azure OpenAI: ``base_url`` is a deployment's address, as the portal shows it, such as
``https://NAME.openai.azure.com/openai/deployments/DEPLOYMENT``, and ``api_version`` its version (or the address ends
with ``?api-version=VERSION``); the key is then sent in the header ``api-key``.

The key is read from the environment or a key file when the engine is created. It is sent in one request header and
appears nowhere else: in no message, repr, count or record, not even if the endpoint echoes it.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from http.cookiejar import CookieJar
from typing import TYPE_CHECKING, Any

from selfimprove.core.errors import UserError, printable_line
from selfimprove.core.records import Message
from selfimprove.engines.api_key import DEFAULT_NAME, find_key
from selfimprove.engines.base import AnsweredLate, Completion, EngineError, EngineStats, Request
from selfimprove.engines.config import OpenAiEngineConfig
from selfimprove.engines.openai_answers import AsciiCookies, Passing, completion_of, count_of, error_of, retry_after

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx
    from tenacity import RetryCallState

LATE_SECONDS = 30.0
"""How long the answer to a sent call is awaited after its episode is cancelled, because it is paid for."""

_SAY = 200  # maximum characters of an endpoint's own message in an error
_SHORTEST_SECRET = 8  # characters
_PATH = "/chat/completions"
_VERSION = "api-version"
_QUOTA = ("insufficient_quota", "billing_hard_limit_reached")


class OpenAiEngine:
    """Samples from a remote model, ``concurrency`` calls at a time.

    Guarantees: completions in sample order; at most ``tries`` calls for each part of a request; text cut before the
    first stop string even if the endpoint ignores ``stop``. Not guaranteed: equal answers to equal seeds (``seed``
    is sent, but the endpoint may ignore it), token ids, log-probabilities or ``allowed``.
    """

    def __init__(self, cfg: OpenAiEngineConfig) -> None:
        """Check the address and find the key; nothing is sent yet.

        Raises:
            UserError: ``base_url`` is not a plain http(s) address, or the key is not found.
        """
        self.stats = EngineStats()
        self.answered_before = False
        self._cfg = cfg
        self._url, version = endpoint_of(cfg.base_url)
        self._version = cfg.api_version or version
        self._key = find_key(cfg.api_key_env, cfg.api_key_file, os.environ)
        # What must not be repeated. A shorter key is a placeholder, such as EMPTY, and may be a word of any answer.
        self._secret = self._key if self._key is not None and len(self._key) >= _SHORTEST_SECRET else None
        self._slots = asyncio.Semaphore(cfg.concurrency)
        self._client: httpx.AsyncClient | None = None
        self._answered = False  # whether anything has ever listened there
        self._served = False  # whether it has ever returned completions
        self._waiting = 0
        self._since = 0.0

    async def generate(self, request: Request) -> list[Completion]:
        """Return ``request.n`` completions, in sample order; makes several calls if one returns fewer.

        Raises:
            EngineError: the tries are used up, or the endpoint refuses this request (too long, say).
            UserError: the endpoint refuses the key or the model, nothing listens, or ``allowed``, ``choice``, ``top_k``
                or ``keep_stop`` is set.
        """
        return [completion async for part in self.parts(request) for completion in part]

    async def parts(self, request: Request) -> AsyncIterator[list[Completion]]:
        """Like ``generate``, but yields the completions of each call as soon as it returns."""
        if request.allowed is not None:
            raise UserError("engine openai cannot limit answers to an allowed list; use engine transformers or vllm.")
        if request.keep_stop:
            raise UserError(
                "engine openai cannot distinguish a stop string from an end of turn; use engine transformers or vllm."
            )
        if request.choice or request.top_k:
            raise UserError(
                "engine openai supports neither choices with probabilities nor top_k; use engine transformers."
            )
        self.stats.requests += 1
        done = 0
        while done < request.n:
            ask = min(self._cfg.n_per_call, request.n - done)
            body = self._body(request, first=done, ask=ask)
            try:
                with self._busy():
                    async with self._slots:
                        part = (await self._insist(body, request))[:ask]
            except EngineError:
                self.stats.failures += 1
                raise
            self.stats.completions += len(part)
            done += len(part)
            yield part

    def fits(self, messages: Sequence[Message], max_tokens: int) -> bool:
        """True: only the endpoint knows its context."""
        return True

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    def _body(self, request: Request, *, first: int, ask: int) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self._cfg.model,
            "messages": [{"role": m.role, "content": m.content} for m in request.messages],
            "n": ask,
            "temperature": request.temperature if self._cfg.temperature is None else self._cfg.temperature,
            "top_p": request.top_p,
            "max_tokens": self._cfg.max_tokens or request.max_tokens,
        }
        if request.stop:
            body["stop"] = list(request.stop)
        if self._cfg.send_seed:
            bits = request.seed.at(request.seed.sample + first).bits()
            body["seed"] = spaced_seed(bits, self._cfg.n_per_call)
        return {name: value for name, value in (body | self._cfg.extra_body).items() if value is not None}

    async def _insist(self, body: dict[str, Any], request: Request) -> list[Completion]:
        import tenacity

        cfg = self._cfg
        backoff = tenacity.wait_exponential(multiplier=cfg.backoff, max=cfg.backoff_max)
        jitter = tenacity.wait_random(0, cfg.backoff)

        def wait(state: RetryCallState) -> float:
            error = state.outcome.exception() if state.outcome else None
            asked = error.retry_after if isinstance(error, Passing) else 0.0
            return max(min(backoff(state) + jitter(state), cfg.backoff_max), asked)

        def count(_: RetryCallState) -> None:
            self.stats.retries += 1

        try:
            async for attempt in tenacity.AsyncRetrying(
                stop=tenacity.stop_after_attempt(cfg.tries),
                wait=wait,
                retry=tenacity.retry_if_exception_type(Passing),
                before_sleep=count,
                reraise=True,
            ):
                with attempt:
                    return await self._call(body, request)
        except Passing as error:
            raise EngineError(f"{self._url}: {error} ({cfg.tries} tries)") from None
        raise AssertionError("unreachable: the loop returns or raises")

    async def _call(self, body: dict[str, Any], request: Request) -> list[Completion]:
        import httpx

        from selfimprove.core.address import DIRECT, TooLong, client_settings, reads_environment

        if self._client is None:
            headers = {"Content-Type": "application/json", "Accept": "application/json"}
            headers["Accept-Encoding"] = "identity"
            if self._key is not None and self._version is not None:
                headers["api-key"] = self._key
            elif self._key is not None:
                headers["Authorization"] = f"Bearer {self._key}"
            # The whole call is timed below; the semaphore limits the connections.
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=self._cfg.concurrency)
            query = {} if self._version is None else {_VERSION: self._version}
            trusted = reads_environment(httpx.URL(self._url))
            with client_settings(read=trusted):
                self._client = httpx.AsyncClient(
                    headers=headers,
                    params=query,
                    timeout=None,
                    limits=limits,
                    trust_env=trusted,
                    mounts=DIRECT,
                    cookies=CookieJar(AsciiCookies()),
                )
        # ensure_ascii also escapes lone surrogates, which UTF-8 cannot encode.
        call = asyncio.create_task(self._post(json.dumps(body, ensure_ascii=True).encode("ascii")))
        try:
            response = await asyncio.shield(call)
        except asyncio.CancelledError:
            if late := await self._late(call, request):
                raise AnsweredLate(late[: body["n"]]) from None
            raise
        except TimeoutError:
            raise Passing(f"no answer within {self._cfg.timeout:g} s") from None
        except TooLong as error:
            raise Passing(str(error)) from None
        except httpx.ConnectError as error:
            if not self._answered and "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise UserError(
                    f"the certificate of {self._url} is not accepted ({self._clean(str(error))}); name a file with it, "
                    "or with its authority's, in SSL_CERT_FILE, or correct base_url."
                ) from None
            if not self._answered:
                raise UserError(
                    f"no endpoint answers at {self._url} ({self._clean(str(error))}); start it or fix base_url."
                ) from None
            raise Passing(f"cannot connect ({self._clean(str(error))})") from None
        except httpx.RequestError as error:  # broken connections and undecodable bodies
            raise Passing(f"the connection broke ({type(error).__name__})") from None
        except httpx.InvalidURL:  # httpx also reads the address of a redirect that it does not follow
            raise Passing("a redirect to something that is no address; if it stays, correct base_url") from None
        self._answered = True
        self._check_status(response)
        completions = self._read(response, request)
        self._served = True
        return completions

    async def _late(self, call: asyncio.Task[httpx.Response], request: Request) -> list[Completion]:
        """The answer to a call that was sent before its episode was cancelled; [] if it failed or takes too long."""
        try:
            response = await asyncio.wait_for(call, LATE_SECONDS)
            self._check_status(response)
            return self._read(response, request)
        except Exception:  # any error: the stage is already ending for another reason
            return []

    async def _post(self, content: bytes) -> httpx.Response:
        """The answer with its complete body, within the time limit of a call."""
        from selfimprove.core.address import whole

        assert self._client is not None
        async with (
            asyncio.timeout(self._cfg.timeout),
            self._client.stream("POST", self._url, content=content) as response,
        ):
            return await whole(response)

    def _check_status(self, response: httpx.Response) -> None:
        status = response.status_code
        if status == 200:
            return
        cfg = self._cfg
        words, code = error_of(response)
        said = self._clean(words)
        if status == 402 or (status in (403, 429) and code in _QUOTA):
            name = cfg.api_key_env or DEFAULT_NAME
            raise UserError(
                f"{self._url}: the quota of the key {name} is used up{said and ': ' + said}; raise it, or use another "
                "key, and run again: finished work is kept."
            )
        key_is_good = self._served or self.answered_before  # then 403 means a refused prompt
        if status == 401 or (status == 403 and not key_is_good):
            if self._key is None:
                raise UserError(
                    f"{self._url} requires a key (status {status}); set api_key_env to the name of a variable that "
                    "holds it."
                )
            name = cfg.api_key_env or DEFAULT_NAME
            if status == 403:  # the words of a 401 may repeat a part of the key
                raise UserError(
                    f"{self._url} rejects the key {name}, its use of model {cfg.model!r} or this prompt (status 403"
                    f"{said and ': ' + said}); set a valid key in that variable or in its key file, or name another "
                    "model."
                )
            raise UserError(
                f"{self._url} rejects the key {name} or its use of model {cfg.model!r} (status {status}); set a valid "
                "key in that variable or in its key file."
            )
        if status in (404, 405):
            raise UserError(
                f"{self._url} does not serve chat completions of model {cfg.model!r} (status {status}); "
                "fix base_url or model."
            )
        if status in (301, 308) and not self._served:
            raise UserError(f"{self._url} redirects permanently (status {status}); correct base_url.")
        if 300 <= status < 400:
            raise Passing(f"a redirect (status {status}), which is not followed; if it stays, correct base_url")
        if status in (408, 409, 425, 429) or status >= 500:
            raise Passing(f"status {status}{said and ': ' + said}", retry_after(response.headers))
        raise EngineError(f"{self._url}: the endpoint refuses the request, status {status}{said and ': ' + said}")

    def _read(self, response: httpx.Response, request: Request) -> list[Completion]:
        try:
            body = json.loads(response.content)
        except (ValueError, RecursionError):
            raise Passing("the body is not JSON") from None
        if not isinstance(body, dict) or body.get("error"):
            raise Passing(f"an error in the body: {self._clean(error_of(response)[0])}")
        choices = body.get("choices")
        if not isinstance(choices, list) or not choices or not all(isinstance(c, dict) for c in choices):
            raise Passing("the body holds no choices")
        if all(isinstance(c.get("index"), int) for c in choices):
            choices = sorted(choices, key=lambda choice: choice["index"])
        completions: list[Completion] = []
        for choice in choices:
            try:
                completions.append(self._without_key(completion_of(choice, request.stop)))
            except Passing:
                if not completions:
                    raise
                break  # the completions so far are kept; the others are requested again, with other seeds
        self._count(body.get("usage"))
        return completions

    def _count(self, usage: Any) -> None:
        if not isinstance(usage, dict):  # not every endpoint reports usage
            return
        details = usage.get("prompt_tokens_details")
        self.stats.prompt_tokens += count_of(usage.get("prompt_tokens"))
        self.stats.generated_tokens += count_of(usage.get("completion_tokens"))
        if isinstance(details, dict):
            self.stats.cached_prompt_tokens += count_of(details.get("cached_tokens"))

    @contextmanager
    def _busy(self) -> Iterator[None]:
        # stats.seconds: the time during which at least one request was waiting.
        if self._waiting == 0:
            self._since = time.monotonic()
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1
            if self._waiting == 0:
                self.stats.seconds += time.monotonic() - self._since

    def _without_key(self, completion: Completion) -> Completion:
        if self._secret is None or self._secret not in completion.text:
            return completion
        return replace(completion, text=completion.text.replace(self._secret, "[key]"))

    def _clean(self, text: str) -> str:
        text = text.replace(self._secret, "[key]") if self._secret else text
        return printable_line(text)[:_SAY]


def spaced_seed(bits: int, spacing: int) -> int:
    """A 31-bit seed that is a multiple of ``spacing``.

    A server that gives child i of one call the seed s + i, as vLLM does, thus never reuses a seed of the next call.
    """
    return bits % (2**31 // spacing) * spacing


def endpoint_of(base_url: str) -> tuple[str, str | None]:
    """The URL to call, and the API version at the end of ``base_url``, if any."""
    from selfimprove.core.address import checked_address

    url = checked_address("base_url", base_url, "http://localhost:8000/v1", options=[_VERSION])
    address = str(url.copy_with(query=None)).rstrip("/").removesuffix(_PATH)
    return f"{address}{_PATH}", url.params.get(_VERSION)
