"""``make serve ENV=textcraft PORT=36001``: an embedded environment as an AgentGym server.

``python -m selfimprove.apps.serve --help`` lists the options. The environment's own settings (recipes, seed,
catalogue) are those of ``agent_r.env`` in params.yaml, so that the server plays as the embedded environment does.
"""

from pathlib import Path
from typing import Annotated

import typer
import uvicorn

from selfimprove.core.cli import run
from selfimprove.core.errors import UserError, meant
from selfimprove.core.yaml import read_yaml
from selfimprove.envs.params import TextParams
from selfimprove.envs.registry import named, text_env
from selfimprove.envs.remote.guard import own_names
from selfimprove.envs.remote.server import address_of, close_env, listen, make_app, server_config
from selfimprove.methods.agent_r.params import AgentRParams
from selfimprove.pipeline.params import load_section

app = typer.Typer(add_completion=False)


@app.command()
def serve(
    env: Annotated[str, typer.Option(help="name of the environment")] = "textcraft",
    port: Annotated[int, typer.Option(min=0, max=65535, help="port to listen on; 0: any free one")] = 36001,
    host: Annotated[str, typer.Option(help="address to listen on; there is no access control")] = "127.0.0.1",
    environments: Annotated[
        int, typer.Option(min=1, help="maximum number of environments that exist at once, over all clients")
    ] = 64,
    idle: Annotated[
        float, typer.Option(min=0, help="idle seconds after which an environment may be reclaimed")
    ] = 600.0,
    params: Annotated[Path, typer.Option(help="file with the section agent_r.env")] = Path("params.yaml"),
) -> None:
    """Serve an embedded environment with AgentGym's HTTP protocol until interrupted."""
    protocol = known.agentgym() if (known := named(TextParams).get(env)) else None
    if protocol is None:
        names = [name for name, one in named(TextParams).items() if one.agentgym()]
        hint = meant(env, names, f"choose one of {', '.join(names)}.")
        raise UserError(f"serve: ENV={env!r} is not an environment of AgentGym's protocol; {hint}")
    section = load_section(read_yaml(params), "agent_r", AgentRParams, str(params))
    settings = section.env if section.env.name == env else text_env(name=env)
    first = settings.make()
    first.reset(first.task_ids()[0])  # so that an error shows now, not at the first request
    close_env(first)
    server = make_app(protocol.dialect, settings.make, environments=environments, idle=idle, names=own_names(host))
    listener = listen(host, port)
    address = address_of(host, listener.getsockname()[1])
    typer.echo(f"{env} at {address}, at most {environments} environments; Ctrl-C stops it")
    uvicorn.Server(server_config(server)).run([listener])


if __name__ == "__main__":
    run(app)
