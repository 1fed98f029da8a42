"""WebShop in AgentGym's HTTP protocol: our server's endpoints, and the client for any such server."""

import re
from collections.abc import Callable
from typing import Any

from pydantic import TypeAdapter

from selfimprove.core.records import plain_text
from selfimprove.core.seeds import rng
from selfimprove.envs.interface import EnvError, Step
from selfimprove.envs.remote.client import Answer, RemoteSlot, outcome
from selfimprove.envs.remote.dialects import Act, Begin, Dialect, Endpoint, Open, Which, begin
from selfimprove.envs.remote.link import NEVER, in_short
from selfimprove.envs.webshop.session import parse_action


def _webshop_begin(held: Open, session_id: int | None) -> list[Any]:
    """Begin a task; without ``session_id``, one drawn by environment and reset number (unseeded in the original)."""
    tasks = held.env.task_ids()
    task = rng("agentgym webshop", held.number, held.resets).choice(tasks) if session_id is None else session_id
    held.detail = {"observation": begin(held, task)}
    return [held.first, None]


def _webshop_created(held: Open) -> int:
    _webshop_begin(held, None)
    return held.number


def _webshop_step(held: Open, asked: Act) -> dict[str, Any]:
    """The last page includes the score, as in the original; our own client removes it."""
    step = held.env.step(asked.action)
    state = step.info.get("final_page", step.observation)
    held.detail = {"observation": state}
    return {"state": state, "reward": float(step.reward), "done": step.done, "info": None}


def _webshop_tells(method: str) -> Callable[[Open, Which], Any]:
    """An endpoint that calls a method of the environment."""
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


class _WebShopStepped(Answer):
    state: str
    reward: float
    done: bool


class _Actions(Answer):
    clickables: list[str]


class WebShopSlot(RemoteSlot):
    """A client for WebShop's dialect: ids are numbers, a task is a ``session_id``, an observation a ``state``."""

    id_key = "env_idx"
    created = TypeAdapter(int)
    _page = ""

    async def reset(self, task_id: int) -> str:
        answer = await self._reset(list[Any], session_id=task_id)
        if not answer or not isinstance(answer[0], str):
            raise EnvError(f"{self._link.server}/reset: not this environment's protocol: {in_short(str(answer))}")
        self._page = plain_text(answer[0])
        return self._page

    async def step(self, action: str) -> Step:
        """See ``Slot``. The score is removed from the last page, because no prompt may contain it."""
        answer = await self._step(_WebShopStepped, action)
        page = re.split(r" \[SEP\] (?:Reward \[SEP\] )?Your score", answer.state)[0] if answer.done else answer.state
        valid = page != self._page or await self._offered(action)
        self._page = plain_text(page)
        return outcome(page, answer.reward, 1.0, answer.done, valid)

    async def _offered(self, action: str) -> bool:
        """Whether an action that left the page unchanged was valid: choosing an option does not change the page.

        The server lists the search button as a clickable, but clicking on it does nothing.
        """
        name, value = parse_action(action)
        if name != "click" or value == "search":
            return name == "search"
        offered = await self._call("GET", "/available_actions", {}, _Actions, NEVER)
        return value in (text.lower() for text in offered.clickables)
