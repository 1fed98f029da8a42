"""``make watch``: the report of a run while it goes on, at 127.0.0.1, read-only.

The first view shows stages at work, their curves and what they wrote last; the others are those of ``make page``, made
again whenever a stage has written results.
"""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

import psutil
import typer
import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from selfimprove.apps.page.build import write_live
from selfimprove.apps.page.live import SCRATCH, status
from selfimprove.core.cli import run as run_command
from selfimprove.core.errors import UserError
from selfimprove.envs.remote.server import listen

HOST = "127.0.0.1"
OUT = SCRATCH / "watch"
SECONDS = 5.0
"""Between looks at the results."""

NOT_YET = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><link rel="icon" href="data:,"><title>Not yet</title>'
    "<p>The report is being made for the first time; this page shows it then.</p></html>"
)

app = typer.Typer(add_completion=False)


def make_app(root: Path, out: Path, *, rebuild: bool = True) -> Starlette:
    """The server. It answers GET alone, and only requests that name this machine: no other web page can read it."""

    async def live(_: Request) -> Response:
        return JSONResponse(await asyncio.to_thread(status, root), headers={"Cache-Control": "no-store"})

    async def home(_: Request) -> Response:
        return RedirectResponse("live.html")

    async def missing(request: Request, error: Exception) -> Response:
        if request.url.path.endswith(".html"):
            return HTMLResponse(NOT_YET, 503, {"Refresh": "3"})
        return PlainTextResponse("Not Found", 404)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        psutil.cpu_percent()  # counts from its last call on
        task = asyncio.create_task(keep_fresh(root, out)) if rebuild else None
        yield
        if task:
            task.cancel()

    routes = [Route("/", home), Route("/status.json", live), Mount("/", StaticFiles(directory=out, check_dir=False))]
    hosts = Middleware(TrustedHostMiddleware, allowed_hosts=[HOST, "localhost"])
    return Starlette(routes=routes, middleware=[hosts], lifespan=lifespan, exception_handlers={404: missing})


def newest(root: Path) -> float:
    """When a result was written last."""
    files = [*(root / "results").glob("*/*"), *(root / "results").glob("*/*/*")]
    return max((path.stat().st_mtime for path in files if path.exists()), default=0.0)


async def keep_fresh(root: Path, out: Path) -> None:
    """Make the report again after results have changed, in a process of its own."""
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
    """The command that makes the report with the live view; it computes nothing, the run needs the processors."""
    options = ["--run", str(root), "--out", str(out), "--logprobs", "no", "--live"]
    return ["nice", sys.executable, "-m", "selfimprove.apps.page", *options]


@app.command()
def watch(
    port: Annotated[int, typer.Option(min=1, max=65535)] = 8017,
    run: Annotated[Path, typer.Option(help="the run's folder")] = Path(),
    out: Annotated[Path, typer.Option(help="where the report is kept meanwhile")] = OUT,
) -> None:
    """Serve the report until interrupted.

    Raises:
        UserError: no folder of a run; or the port is taken.
    """
    if not run.is_dir():
        raise UserError(f"--run {run}: there is no such folder; name the one of a run.")
    listener = listen(HOST, port)
    write_live(out)
    typer.echo(f"http://{HOST}:{port} shows the run; Ctrl-C ends it")
    uvicorn.Server(uvicorn.Config(make_app(run, out), log_level="warning")).run([listener])


if __name__ == "__main__":
    run_command(app)
