"""``make watch``: a read-only live report of a run, served at 127.0.0.1.

The first view shows running stages with their curves and latest output. The other views are those of ``make page``,
rebuilt whenever a stage has written results.
"""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator
from itertools import chain
from pathlib import Path
from typing import Annotated

import psutil
import typer
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from selfimprove.apps.page.build import write_live
from selfimprove.apps.page.live import SCRATCH, status
from selfimprove.apps.page.run import run_folder
from selfimprove.core.cli import run as run_command
from selfimprove.envs.remote.server import listen

HOST = "127.0.0.1"
OUT = SCRATCH / "watch"
SECONDS = 5.0
"""Interval between checks for new results."""

NOT_YET = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><link rel="icon" href="data:,"><title>Building</title>'
    "<p>The report is being built for the first time. This page reloads until it is ready.</p></html>"
)

app = typer.Typer(add_completion=False)


def make_app(root: Path, out: Path, *, rebuild: bool = True) -> Starlette:
    """The server: GET only, and only requests addressed to this machine, so that no other web page can read it.

    A page may load scripts from anywhere, and the report's data are scripts: browsers give them to its own pages only.
    """

    async def live(_: Request) -> Response:
        return JSONResponse(await asyncio.to_thread(status, root), headers={"Cache-Control": "no-store"})

    async def home(_: Request) -> Response:
        return RedirectResponse("live.html")

    async def missing(request: Request, error: Exception) -> Response:
        if request.url.path.endswith(".html"):
            return HTMLResponse(NOT_YET, 503, {"Refresh": "3"})
        return PlainTextResponse("Not Found", 404)

    async def to_own_pages(request: Request, answer: RequestResponseEndpoint) -> Response:
        response = await answer(request)
        response.headers["Cross-Origin-Resource-Policy"] = "same-origin"
        return response

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        psutil.cpu_percent()  # the first call starts the measurement
        task = asyncio.create_task(keep_fresh(root, out)) if rebuild else None
        yield
        if task:
            task.cancel()

    routes = [Route("/", home), Route("/status.json", live), Mount("/", StaticFiles(directory=out, check_dir=False))]
    own = [
        Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"]),
        Middleware(BaseHTTPMiddleware, dispatch=to_own_pages),
    ]
    return Starlette(routes=routes, middleware=own, lifespan=lifespan, exception_handlers={404: missing})


def newest(root: Path) -> float:
    """Modification time of the newest result."""
    found = [0.0]
    with contextlib.suppress(OSError):  # a stage replaces a folder
        for path in chain((root / "results").glob("*/*"), (root / "results").glob("*/*/*")):
            with contextlib.suppress(OSError):
                found.append(path.stat().st_mtime)
    return max(found)


async def keep_fresh(root: Path, out: Path) -> None:
    """Rebuild the report in a subprocess whenever results have changed."""
    seen = -1.0
    while True:
        found = await asyncio.to_thread(newest, root)
        if found != seen:
            seen = found
            process = await asyncio.create_subprocess_exec(*building(root, out), stdout=subprocess.DEVNULL)
            try:
                await process.wait()
            finally:
                if process.returncode is None:
                    process.kill()
        await asyncio.sleep(SECONDS)


def building(root: Path, out: Path) -> list[str]:
    """The command that builds the report with the live view; no log-probabilities, to leave the CPUs to the run."""
    options = ["--run", str(root), "--out", str(out), "--logprobs", "no", "--live"]
    return ["nice", sys.executable, "-m", "selfimprove.apps.page", *options]


@app.command()
def watch(
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8017,
    run: Annotated[Path, typer.Option(help="folder of the run")] = Path(),
    out: Annotated[Path, typer.Option(help="output folder of the report")] = OUT,
) -> None:
    """Serve the report until interrupted."""
    run_folder(run)
    listener = listen(HOST, port)
    write_live(out)
    typer.echo(f"http://{HOST}:{port} shows the run; press Ctrl-C to stop")
    uvicorn.Server(uvicorn.Config(make_app(run, out), log_level="warning")).run([listener])


if __name__ == "__main__":
    run_command(app)
