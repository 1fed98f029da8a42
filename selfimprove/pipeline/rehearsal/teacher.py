"""The local teacher: an OpenAI-compatible server for the environments' scripted experts.

``python -m selfimprove.pipeline.rehearsal.teacher FOLDER PORT`` serves ``POST /v1/chat/completions`` on 127.0.0.1
until its standard input is closed, which happens when the rehearsal that started it ends for any reason. Clients must
send ``KEY`` as their key, which ensures that a real key in the environment of a rehearsal is never sent.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from pydantic import BaseModel, Field, ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from selfimprove.core.cli import one_sentence
from selfimprove.core.errors import UserError
from selfimprove.core.records import Message
from selfimprove.envs.remote.server import listen
from selfimprove.pipeline.rehearsal.experts import answer

KEY = "rehearsal"
"""The dummy key."""

START_SECONDS = 120.0


class Said(BaseModel):
    """One message of a request."""

    role: str
    content: str


class Call(BaseModel):
    """The fields used of a chat-completion request; sampling parameters such as ``temperature`` are ignored."""

    model: str
    messages: list[Said] = Field(min_length=1)
    n: int = Field(default=1, ge=1, le=128)


def make_app(folder: Path) -> Starlette:
    """The server's application for a rehearsal's folder.

    Raises:
        UserError: the folder's params are missing or invalid.
    """
    expert = answer(folder)

    async def complete(request: Request) -> JSONResponse:
        if request.headers.get("authorization") != f"Bearer {KEY}":
            return _error(401, "the key of a rehearsal is wanted")
        try:
            call = Call.model_validate_json(await request.body())
        except ValidationError as error:
            return _error(400, str(error.errors(include_url=False)[0]["msg"]))
        dialogue = [Message.model_validate(said.model_dump()) for said in call.messages]
        texts = [expert(dialogue, index) for index in range(call.n)]
        return JSONResponse(_completion(call, texts))

    async def models(request: Request) -> JSONResponse:
        return JSONResponse({"object": "list", "data": []})

    return Starlette(routes=[Route("/v1/chat/completions", complete, methods=["POST"]), Route("/v1/models", models)])


@contextmanager
def serving(folder: Path, port: int, log: Path, python: str = sys.executable) -> Iterator[None]:
    """Run the server in a separate process, ready when the block starts and stopped when it ends.

    Args:
        python: the stages' interpreter, whose installed packages are AutoExplore's repositories.

    Raises:
        UserError: the server did not start; quotes the end of its log.
    """
    command = [python, "-m", "selfimprove.pipeline.rehearsal.teacher", str(folder), str(port)]
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=out)
    assert process.stdin is not None
    try:
        _wait(process, port, log)
        yield
    finally:
        process.stdin.close()
        process.terminate()
        process.wait()


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            httpx.get(f"http://127.0.0.1:{port}/v1/models", timeout=5, trust_env=False).raise_for_status()
            return
        except httpx.HTTPError:
            time.sleep(0.1)
    said = " ".join(log.read_text(encoding="utf-8", errors="replace").split())[-300:]
    raise UserError(f"rehearse: the local teacher did not start ({said or 'no output'}); see {log}.")


def _completion(call: Call, texts: Sequence[str]) -> dict[str, Any]:
    """The body of a response; its token counts are word counts."""
    read = sum(len(said.content.split()) for said in call.messages)
    written = sum(len(text.split()) for text in texts)
    return {
        "id": "rehearsal",
        "object": "chat.completion",
        "created": 0,
        "model": call.model,
        "choices": [
            {"index": index, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            for index, text in enumerate(texts)
        ],
        "usage": {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written},
    }


def _error(status: int, message: str) -> JSONResponse:
    return JSONResponse({"error": {"message": message, "type": "invalid_request_error"}}, status_code=status)


def _end_with_input() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Serve until standard input is closed."""
    folder, port = Path(sys.argv[1]), int(sys.argv[2])
    with one_sentence():
        app, listener = make_app(folder), listen("127.0.0.1", port)
    threading.Thread(target=_end_with_input, daemon=True).start()
    uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run([listener])


if __name__ == "__main__":
    main()
