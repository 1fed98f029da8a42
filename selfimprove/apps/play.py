"""``make play ENV=taxi``: an episode in the terminal, played by you, an expert, at random or by a trained model.

    $ make play ENV=kitchen
    $ make play ENV=autoexplore POLICY=expert
    $ make play ENV=textcraft POLICY=model:models/agent_r/iter1

Type an action, or its label if actions have labels. Lines that start with a colon are commands: ``:a`` lists the
possible actions, ``:h`` shows the expert's action, ``:q`` quits (as does the end of the input). The environments'
settings are those of params.yaml.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NamedTuple, TextIO

import typer
from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from selfimprove.apps.play_games import ENVS, Game, make_game, plain
from selfimprove.core.cli import run
from selfimprove.core.errors import UserError, meant
from selfimprove.core.seeds import SeedKey, rng
from selfimprove.engines.base import Engine, EngineError
from selfimprove.envs.interface import EnvError

LINE_LIMIT = 2000  # maximum number of characters read from a typed line
STEPS = 100  # maximum number of actions in an episode
SHORTEST = 16  # the smallest context of an engine
HOTTEST = 100  # a larger temperature makes every token equally likely
COMMANDS = ":a lists the actions, :h shows the expert's, :q quits."
HELP = """\
an action, or its label    take this action
:a                         list the possible actions
:h                         show the expert's action
:q                         quit"""

app = typer.Typer(add_completion=False)


class PlayOutcome(NamedTuple):
    """How an episode ended. ``ended``: by the game; otherwise the player left, or the step limit was reached."""

    ended: bool
    success: bool
    steps: int


Policy = Callable[[Game, int], str | None]
"""(game, step) -> the action; None if the player leaves."""


class Person:
    """A human player: reads lines from a stream until one is a valid action. Any input is handled."""

    def __init__(self, console: Console, stream: TextIO) -> None:
        self._console, self._stream = console, stream

    def __call__(self, game: Game, step: int) -> str | None:
        if not step:
            self._console.print(_shown("Type an action or an answer. " + COMMANDS, "yellow"))
        while (line := self._read()) is not None:
            if line in (":q", ":quit"):
                return None
            if line.startswith(":"):
                self._console.print(_shown(self._answer(game, line)))
            elif line and (action := self._action(game, line)):
                return action
        return None

    def _read(self) -> str | None:
        """A line without control characters; None at the end of the input."""
        self._console.print("> ", end="", markup=False)
        try:
            line = self._stream.readline()
        except (KeyboardInterrupt, OSError):
            return None
        except UnicodeDecodeError:
            return ""
        return " ".join(plain(line[:LINE_LIMIT]).split()) if line else None

    def _answer(self, game: Game, line: str) -> str:
        if line == ":a":
            return "\n".join(game.possible()) or "Type any text; this environment lists no actions."
        if line == ":h":
            move = game.expert()
            if move is None:
                return "The expert has no action here."
            return f"{move.thought}\n{move.action}  {game.choices().get(move.action, '')}".rstrip()
        return HELP

    def _action(self, game: Game, line: str) -> str | None:
        """The label of the typed action; the text itself, without a model's "Action:", if there are no labels."""
        choices = game.choices()
        if not choices:
            return line.rpartition("Action:")[2].strip()
        if line in choices:
            return line
        for label, command in choices.items():
            if line in (command, f"{label}. {command}", f"{label}."):
                return label
        self._console.print(_shown("No such action. " + COMMANDS, "yellow"))
        return None


def expert(game: Game, step: int) -> str | None:
    """Plays the expert's action; leaves if the expert has none."""
    move = game.expert()
    return None if move is None else move.action


def chance(seed: int) -> Policy:
    """A uniformly random policy over the possible actions, or over numbers if none can be listed."""

    def choose(game: Game, step: int) -> str | None:
        draw = rng("play", seed, game.name, step)
        if choices := game.choices():
            return draw.choice(list(choices))
        possible = game.possible()
        return draw.choice(possible) if possible else str(draw.randint(0, 100))

    return choose


class Model:
    """A trained model, prompted as in its method."""

    def __init__(self, engine: Engine, seed: int, temperature: float) -> None:
        self._engine, self._seed, self._temperature = engine, seed, temperature
        self._runner = asyncio.Runner()

    def __call__(self, game: Game, step: int) -> str | None:
        key = SeedKey(self._seed, f"play {game.name}", step)
        return self._runner.run(game.ask(self._engine, key, self._temperature))


def play(game: Game, task: int, policy: Policy, console: Console, steps: int = STEPS) -> PlayOutcome:
    """Play and show one episode; it ends when the game ends, the player leaves, or after ``steps`` actions.

    Raises:
        UserError: there is no such task, or something that the game or the model needs is missing.
        EnvError, EngineError: the game or the model failed.
    """
    text = game.begin(task)
    if game.about:
        console.print(Panel(_shown(game.about), title=_shown(f"{game.name}, task {task}")))
    console.print(_shown(text))
    for step in range(steps):
        action = policy(game, step)
        if action is None:
            console.print(_shown(f"stopped after {_steps(step)}", "yellow"))
            return PlayOutcome(False, False, step)
        label = game.choices().get(action)
        told = game.act(action)
        console.rule(_shown(f"{action}  {label}" if label else " ".join(action.split())[:100], "bold"))
        console.print(_shown(told.text))
        console.print(_shown(told.score + ("" if told.valid else "  (not understood)"), "cyan"))
        if told.done:
            console.print(_shown(f"{'success' if told.success else 'failure'} after {_steps(step + 1)}", "bold"))
            return PlayOutcome(True, told.success, step + 1)
    console.print(_shown(f"stopped after {_steps(steps)}", "yellow"))
    return PlayOutcome(False, False, steps)


def _steps(number: int) -> str:
    return f"{number} step{'s' * (number != 1)}"


def _shown(text: str, style: str = "") -> Text:
    """The text without markup and control characters."""
    return Text(plain(text), style=style)


def make_policy(name: str, console: Console, stream: TextIO, seed: int, temperature: float) -> Policy:
    """The player named by ``--policy``.

    Raises:
        UserError: there is no such player or model.
    """
    if name == "person":
        return Person(console, stream)
    if name == "expert":
        return expert
    if name == "random":
        return chance(seed)
    kind, _, folder = name.partition(":")
    if kind == "model" and folder:
        return Model(load_engine(Path(folder)), seed, temperature)
    raise UserError(f"play: POLICY={name!r} is unknown; choose person, expert, random or model:FOLDER.")


def load_engine(folder: Path) -> Engine:
    """An engine for the model in a folder, with the model's context length, at most 4096.

    Raises:
        UserError: there is no model, or it cannot be loaded.
    """
    from selfimprove.engines.config import TransformersEngineConfig
    from selfimprove.engines.factory import make_engine

    config = folder / "config.json"
    try:
        values = json.loads(config.read_text(encoding="utf-8"))
        context = int(values.get("max_position_embeddings") or values.get("n_positions") or 1024)
    except OSError:
        raise UserError(
            f"play: {folder} contains no model (config.json); name a trained row's folder such as models/rise/iter1."
        ) from None
    except (ValueError, AttributeError, TypeError, OverflowError, RecursionError):
        raise UserError(f"play: {config} is damaged; run `make repro`, which restores it.") from None
    if context < SHORTEST:
        raise UserError(f"play: {config} allows only {context} positions; at least {SHORTEST} are needed.")
    cfg = TransformersEngineConfig(
        engine="transformers", model=str(folder), slots=1, prefill_rows=1, context=min(context, 4096)
    )
    return make_engine(cfg, policy_dir=folder, threads=1, expert=None)


@app.command()
def main(
    env: Annotated[str, typer.Option(help=f"one of {', '.join(ENVS)}")] = ENVS[0],
    policy: Annotated[str, typer.Option(help="person, expert, random or model:FOLDER")] = "person",
    task: Annotated[int | None, typer.Option(help="index of the task; default: drawn with the seed")] = None,
    seed: Annotated[int, typer.Option(help="seed of the task and of random and model actions")] = 0,
    steps: Annotated[int, typer.Option(min=1, help="maximum number of steps")] = STEPS,
    temperature: Annotated[float, typer.Option(help="sampling temperature of a model; 0: greedy")] = 0.0,
    reflector: Annotated[
        Path | None, typer.Option(help="folder of a reflection model that advises POLICY's model")
    ] = None,
    file: Annotated[
        Path | None, typer.Option(help="gsm8k, math, your own questions: problems (JSONL); hotpotqa: questions")
    ] = None,
    params: Annotated[Path, typer.Option(help="file with the environments' settings")] = Path("params.yaml"),
) -> None:
    """Play one episode in the terminal."""
    module, _, own = env.partition(":")
    if env not in ENVS and not (module and own):
        hint = meant(env, ENVS, f"choose one of {', '.join(ENVS)}.")
        raise UserError(f"play: ENV={env!r} is unknown; {hint}")
    if not 0 <= temperature <= HOTTEST:
        raise UserError(f"play: --temperature {temperature} is not a number from 0 to {HOTTEST}.")
    if reflector is not None and not policy.startswith("model:"):
        raise UserError(f"play: --reflector needs POLICY=model:FOLDER, not {policy}; remove --reflector.")
    if hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(errors="replace")  # a pipe may hold any bytes
    console = Console(highlight=False)
    game = make_game(env, params, file, None if reflector is None else load_engine(reflector))
    tasks = game.tasks()
    if task is not None and task not in tasks:  # TextCraft, like the original, takes numbers modulo its goals
        raise UserError(f"play: {env} has no task {task}; there are {len(tasks)}, from {min(tasks)} to {max(tasks)}.")
    chosen = rng("play", seed, env).choice(tasks) if task is None else task
    play(game, chosen, make_policy(policy, console, sys.stdin, seed, temperature), console, steps)


if __name__ == "__main__":
    run(app, None, EnvError, EngineError)
