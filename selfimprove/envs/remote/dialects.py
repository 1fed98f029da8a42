"""AgentGym's three dialects as our server speaks them: TextCraft's, ScienceWorld's, WebShop's.

A dialect is a table of calls, each a function from a held environment and the request's fields to the answer's JSON:
AgentGym's own calls and ours (docs/agent-r.md, A42). What clients must have sent is a schema beside them; how calls
arrive and how environments are held is ``agentgym_server``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict

from selfimprove.core.seeds import rng
from selfimprove.envs.interface import AgentEnv


class Refused(Exception):
    """A request that can't be served; the sentence goes into the answer."""


@dataclass
class Open:
    """An environment that a client holds.

    ``used``: when it was last called; ``first``: the task's first observation; ``detail``: what ``/detail`` tells,
    replaced but never changed; ``lock``: one call at a time.
    """

    number: int
    env: AgentEnv
    used: float = 0.0
    resets: int = 0
    first: str = ""
    detail: dict[str, Any] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class Ask(BaseModel):
    """A request's fields; others are ignored, as in the originals."""

    model_config = ConfigDict(extra="ignore", populate_by_name=True)


class Create(Ask):
    """TextCraft's clients send recipes and a goal of their own, which the original's reset forgets at once."""


class Which(Ask):
    """``env_idx`` in WebShop's dialect, which is renamed before the fields are read."""

    id: int


class Begin(Which):
    """Which task; None: any."""

    data_idx: int | None = None


class Act(Which):
    """Any text is an action."""

    action: str


class Endpoint(NamedTuple):
    """A call: ``answer(held environment, fields)`` gives its JSON."""

    method: str
    path: str
    fields: type[Which]
    answer: Callable[[Open, Any], Any]


@dataclass(frozen=True)
class Dialect:
    """What distinguishes a server: its greeting, its names of the fields, its calls.

    ``created(held)`` prepares a new environment and answers ``/create``. ``threads``: the environment's calls take
    long and are run in threads; else they are run where they are, one after the other.
    """

    greeting: str
    created: Callable[[Open], Any]
    endpoints: tuple[Endpoint, ...]
    renamed: Mapping[str, str] = field(default_factory=dict)
    closed: Any = True
    threads: bool = False


def _begin(held: Open, task_id: int) -> str:
    """Reset to a task: the first observation."""
    held.first = held.env.reset(task_id)
    held.resets += 1
    return held.first


# TextCraft


def _textcraft_begin(held: Open, data_idx: int) -> dict[str, Any]:
    tasks = held.env.task_ids()
    observation = _begin(held, tasks[data_idx % len(tasks)])
    held.detail = {"observation": observation, "done": False, "reward": 0, "deleted": False}
    return {"id": held.number, "observation": observation, "done": False, "reward": 0}


def _textcraft_step(held: Open, asked: Act) -> dict[str, Any]:
    step = held.env.step(asked.action)
    answer = {"observation": step.observation, "reward": int(step.reward), "done": step.done}
    held.detail = {**held.detail, **answer}
    return answer


def _textcraft_goal(held: Open, asked: Which) -> str:
    return held.first.rpartition("Goal: craft ")[2].removesuffix(".")


def _textcraft_commands(held: Open, asked: Which) -> str:
    return held.first.partition("\n")[2].rpartition("\n\nGoal: ")[0]


TEXTCRAFT = Dialect(
    greeting="This is environment TextCraft.",
    created=lambda held: _textcraft_begin(held, held.number),
    endpoints=(
        Endpoint("POST", "/reset", Begin, lambda held, asked: _textcraft_begin(held, asked.data_idx or 0)),
        Endpoint("POST", "/step", Act, _textcraft_step),
        Endpoint("GET", "/observation", Which, lambda held, asked: held.detail["observation"]),
        Endpoint("GET", "/detail", Which, lambda held, asked: held.detail),
        Endpoint("GET", "/goal", Which, _textcraft_goal),
        Endpoint("GET", "/commands", Which, _textcraft_commands),
        Endpoint("GET", "/valid_actions", Which, lambda held, asked: held.env.valid_actions()),
    ),
)

# ScienceWorld. The embedded environment's ``simulator`` tells what is not part of ``AgentEnv``.


def _sciworld_reset(held: Open, asked: Begin) -> dict[str, Any]:
    from selfimprove.envs.sciworld.games import game

    env: Any = held.env
    task_id = asked.data_idx or 0
    first = _begin(held, task_id)
    description = env.simulator.description()
    task, variation = game(task_id)
    held.detail = {
        "task_name": task,
        "var_num": variation,
        "task_description": description,
        "observation": first.removeprefix(f"{description}\n"),
        "reward": 0,
        "score": 0,
        "deleted": False,
        "done": False,
    }
    return held.detail


def _playing(answer: Callable[[Open, Any], Any]) -> Callable[[Open, Any], Any]:
    """As the original, refuse everything but ``/reset`` and ``/close`` before the first reset and after the end."""

    def checked(held: Open, asked: Any) -> Any:
        if not held.detail:
            raise Refused(f"The environment {held.number} has no task yet; reset it.")
        if held.detail["done"]:
            raise Refused(f"The task with environment {held.number} has finished.")
        return answer(held, asked)

    return checked


def _sciworld_step(held: Open, asked: Act) -> dict[str, Any]:
    """``score`` is the original's, -100 to 100, and ``reward`` its change."""
    step = held.env.step(asked.action)
    score = int(step.info["raw_score"])
    answer = {
        "observation": step.observation,
        "reward": score - held.detail["score"],
        "score": score,
        "done": step.done,
    }
    held.detail = {**held.detail, **answer}
    return answer


def _sciworld_tells(tell: Callable[[Any], Any]) -> Callable[[Open, Any], Any]:
    """A call that the simulator answers, at no cost in moves."""

    def answer(held: Open, asked: Which) -> Any:
        env: Any = held.env
        return tell(env.simulator)

    return _playing(answer)


MOST_LISTED = 10
"""Actions and things that ``/state`` lists, as the original does."""


def _sciworld_state(held: Open, asked: Which) -> dict[str, Any]:
    """What a viewer shows beside an episode."""
    env: Any = held.env
    simulator = env.simulator
    return {
        "observation": simulator.look(),
        "inventory": simulator.inventory(),
        "task_description": simulator.description(),
        "goal_progress": simulator.goal_progress(),
        "possible_actions": simulator.templates()[:MOST_LISTED],
        "possible_objects": simulator.objects()[:MOST_LISTED],
        "current_moves": simulator.moves(),
        "environment_info": held.detail,
    }


def _sciworld_step_visual(held: Open, asked: Act) -> dict[str, Any]:
    """A step for viewers: a model's whole reply may be sent, and everything that can be seen comes back.

    ``info`` is what the package tells after a step; its list of valid actions makes the call take 0.2 s.
    """
    reply = asked.action.removesuffix("</s>")
    answer = _sciworld_step(held, asked.model_copy(update={"action": reply.rpartition("Action:")[2].strip()}))
    env: Any = held.env
    simulator = env.simulator
    inventory, moves = simulator.inventory(), simulator.moves()
    info = {
        "moves": moves,
        "score": answer["score"],
        "reward": answer["reward"],
        "look": simulator.look(),
        "inv": inventory,
        "taskDesc": simulator.description(),
        "valid": env.valid_actions(),
        "variationIdx": held.detail["var_num"],
        "taskName": held.detail["task_name"],
        "simplificationStr": "",
    }
    return {**answer, "info": info, "object_tree": simulator.object_tree(), "inventory": inventory, "moves": moves}


SCIWORLD = Dialect(
    greeting="This is environment ScienceWorld.",
    created=lambda held: {"id": held.number},
    endpoints=(
        Endpoint("POST", "/reset", Begin, _sciworld_reset),
        Endpoint("POST", "/step", Act, _playing(_sciworld_step)),
        Endpoint("GET", "/observation", Which, _playing(lambda held, asked: held.detail["observation"])),
        Endpoint("GET", "/detail", Which, _playing(lambda held, asked: held.detail)),
        Endpoint(
            "GET",
            "/action_hint",
            Which,
            _sciworld_tells(lambda it: {"possible_actions": it.templates(), "possible_objects": it.objects()}),
        ),
        Endpoint("GET", "/goals", Which, _sciworld_tells(lambda it: {"goals": it.goal_progress()})),
        Endpoint("GET", "/task_description", Which, _sciworld_tells(lambda it: {"task_description": it.description()})),
        Endpoint("GET", "/object_tree", Which, _sciworld_tells(lambda it: {"object_tree": it.object_tree()})),
        Endpoint("GET", "/state", Which, _playing(_sciworld_state)),
        Endpoint("POST", "/step_visual", Act, _playing(_sciworld_step_visual)),
        Endpoint("GET", "/look", Which, _sciworld_tells(lambda it: it.look())),
        Endpoint("GET", "/inventory", Which, _sciworld_tells(lambda it: it.inventory())),
        Endpoint("GET", "/valid_actions", Which, _playing(lambda held, asked: held.env.valid_actions())),
    ),
    threads=True,
)


# WebShop


def _webshop_begin(held: Open, session_id: int | None) -> list[Any]:
    """Any task, if the client names none: not the original's unseeded choice, but one for each reset."""
    tasks = held.env.task_ids()
    task = rng("agentgym webshop", held.number, held.resets).choice(tasks) if session_id is None else session_id
    held.detail = {"observation": _begin(held, task)}
    return [held.first, None]


def _webshop_created(held: Open) -> int:
    _webshop_begin(held, None)
    return held.number


def _webshop_step(held: Open, asked: Act) -> dict[str, Any]:
    """The last page goes out with its score, as in the original; our own client cuts it off."""
    step = held.env.step(asked.action)
    state = step.info.get("final_page", step.observation)
    held.detail = {"observation": state}
    return {"state": state, "reward": float(step.reward), "done": step.done, "info": None}


def _webshop_tells(method: str) -> Callable[[Open, Which], Any]:
    """A call that the environment itself answers."""
    return lambda held, asked: getattr(held.env, method)()


WEBSHOP = Dialect(
    greeting="ok",
    created=_webshop_created,
    endpoints=(
        Endpoint("POST", "/reset", Begin, lambda held, asked: _webshop_begin(held, asked.data_idx)),
        Endpoint("POST", "/step", Act, _webshop_step),
        Endpoint("GET", "/observation", Which, lambda held, asked: held.detail["observation"]),
        Endpoint("GET", "/available_actions", Which, _webshop_tells("available_actions")),
        Endpoint("GET", "/instruction_text", Which, _webshop_tells("instruction_text")),
        Endpoint("GET", "/valid_actions", Which, lambda held, asked: held.env.valid_actions()),
    ),
    renamed={"id": "env_idx", "data_idx": "session_id"},
    closed={"closed": True},
)

DIALECTS: dict[str, Dialect] = {"textcraft": TEXTCRAFT, "sciworld": SCIWORLD, "webshop": WEBSHOP}
