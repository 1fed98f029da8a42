"""One session of an OpenEnv server as a slot of ``envs/replay.py``: messages, observations and scores.

If a connection breaks during an episode, it is re-established, the task is reset, and the actions are sent again. The
server drops the environment with the connection, so no action counts twice.
"""

import asyncio
import json
import math
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from selfimprove.core.errors import UserError
from selfimprove.core.records import parse_json, plain_text
from selfimprove.envs.interface import EnvError, Step
from selfimprove.envs.openenv.link import Connection, Dropped, Refused, Server, Told
from selfimprove.envs.remote.link import in_short

T = TypeVar("T")
Score = Literal["return", "last", "terminated"] | float

BACKOFF = 0.5
"""Seconds before the first reconnection; doubled each time."""

NOTHING = "Nothing happens."
TASK, ACTION, NUMBER, JSON = "{task}", "{action}", "{number}", "{json}"
"""Placeholders in a message's fields: for the task, the action's text, its number, and its text parsed as JSON."""

OF_THE_MESSAGE = ("missing", "extra_forbidden")
"""Kinds of faults in the set of fields, independent of what the model writes into them."""
MOST_LEVELS = 100
"""Maximum nesting of an action's JSON; the library that writes JSON fails on a thousand levels."""
CLOSE = 1e-9
_NUMBER = re.compile(r"-?[0-9]{1,15}")


class Seen(str):
    """An observation, and the actions that it lists (None: it lists none)."""

    __slots__ = ("listed",)
    listed: tuple[str, ...] | None


@dataclass(frozen=True)
class Rules:
    """How tasks and actions become messages, and answers become text and scores: ``OpenEnvParams``."""

    name: str
    reset: Mapping[str, Any]
    action: Mapping[str, Any] | str
    actions: Sequence[str]
    listed: str
    field: str
    score: Score
    success_return: float = 1.0

    def message(self, action: str) -> dict[str, Any] | None:
        """The fields of an action; None if the rules require a number or JSON and the action is not one."""
        values: dict[str, Any] = {ACTION: plain_text(action)}
        if action in self.actions:
            values[NUMBER] = self.actions.index(action)
        elif not self.actions and _NUMBER.fullmatch(action.strip()):
            values[NUMBER] = int(action)
        if NUMBER not in values and holds(self.action, NUMBER):
            return None
        if holds(self.action, JSON):
            try:
                values[JSON] = parse_json(values[ACTION])
            except (ValueError, RecursionError):
                return None
            if not _can_be_sent(values[JSON], MOST_LEVELS):
                return None
        message = filled(self.action, values)
        return message if isinstance(message, dict) else None

    def seen(self, told: Told) -> Seen:
        """The text of an observation, with the actions that it lists, else the configured ones."""
        try:
            seen = Seen(plain_text(written(self._at(told, self.field) if self.field else told.observation)))
        except RecursionError:
            raise UserError(
                f"{self.name}: an observation is nested too deeply; set env.field to a field that contains text."
            ) from None
        seen.listed = tuple(self.actions) or None
        if told.done:
            seen.listed = ()
        elif self.listed:
            values = self._at(told, self.listed)
            if not isinstance(values, list) or not all(isinstance(one, str | int) for one in values):
                raise UserError(
                    f"{self.name}: {self.listed} is not a list of actions: {in_short(str(values))}; fix env.listed."
                )
            seen.listed = tuple(dict.fromkeys(self._named(one) for one in values))
        return seen

    def _named(self, value: str | int) -> str:
        if isinstance(value, str):
            return plain_text(value)
        return self.actions[value] if 0 <= value < len(self.actions) else str(value)

    def _at(self, told: Told, path: str) -> Any:
        """A value of the observation by its path: ``messages.-1.content``."""
        value: Any = told.observation
        for key in path.split("."):
            try:
                value = value[int(key)] if isinstance(value, list) else value[key]
            except (KeyError, IndexError, TypeError, ValueError):
                there = in_short(", ".join(value) if isinstance(value, dict) else str(value))
                raise UserError(
                    f"{self.name}: an observation has no {path} (it has {there[:200] or 'nothing'}); fix env.field or "
                    "env.listed."
                ) from None
        return value

    def scored(self, task: int, reward: float, total: float, done: bool) -> float:
        """The score of an episode so far. Raises: UserError: it is not in [0, 1]."""
        match self.score:
            case "return":
                score = total / self.success_return
            case "last":
                score = reward
            case "terminated":
                score = float(done)
            case least:
                score = float(reward >= least)
        if not -CLOSE <= score <= 1 + CLOSE:
            what = f"the rewards add up to {total:g}" if self.score == "return" else f"a reward is {reward:g}"
            raise UserError(
                f"{self.name}: in task {task} {what}, but a score must be in [0, 1]; set env.success_return to the sum "
                "that means success, or env.score to terminated or to the reward that means success."
            )
        return min(1.0, max(0.0, round(score, 9)))  # so that ten times 0.1 is 1


class Session:
    """See the module. Implements ``replay.Slot``."""

    def __init__(self, server: Server, rules: Rules, retries: int) -> None:
        """``retries``: maximum reconnections per call."""
        self._server, self._rules, self._retries = server, rules, retries
        self._connection: Connection | None = None
        self._here = False  # whether the server's environment is in the state after the actions below
        self._task, self._sent = 0, list[dict[str, Any]]()
        self._seen = Seen()
        self._total, self._score = 0.0, 0.0

    async def reset(self, task_id: int) -> Seen:
        """See ``Slot``."""
        self._here, self._task, self._sent = False, task_id, []
        self._total, self._score = 0.0, 0.0
        self._seen = await self._again_if_dropped(self._begin)
        return self._seen

    async def step(self, action: str) -> Step:
        """See ``Slot``. An action that is not listed, or that the server does not accept, has no effect."""
        listed = self._seen.listed
        message = self._rules.message(action)
        if message is None or (listed is not None and action not in listed):
            return self._nothing()
        return await self._again_if_dropped(lambda: self._act(action, message))

    async def close(self) -> None:
        """See ``Slot``."""
        connection, self._connection, self._here = self._connection, None, False
        if connection is not None:
            await connection.close()

    async def _begin(self) -> Seen:
        connection = await self._connected()
        try:
            told = await connection.ask("reset", filled(self._rules.reset, {TASK: self._task}))
        except Refused as refused:
            if refused.code == "CAPACITY_REACHED":  # may be temporary, until abandoned sessions have ended
                raise Dropped(f"it is full: {refused}") from refused
            raise self._failed(f"reset of task {self._task}", refused) from None
        seen = self._rules.seen(told)
        if told.done:
            raise UserError(f"{self._server.name}: task {self._task} ends at its reset; fix env.reset.")
        self._here = True
        return seen

    async def _act(self, action: str, message: dict[str, Any]) -> Step:
        if not self._here:
            await self._return()
        connection = await self._connected()
        try:
            told = await connection.ask("step", message)
        except Refused as refused:
            if refused.code == "VALIDATION_ERROR":
                wrong = [f"{field} is {kind}" for kind, field in refused.faults if kind in OF_THE_MESSAGE]
                if wrong and not holds(self._rules.action, JSON):
                    raise UserError(
                        f"{self._server.name} rejects an action with the fields {', '.join(message)} "
                        f"({in_short('; '.join(wrong))}); set env.action to the fields listed at the server's /schema."
                    ) from None
                return self._nothing()
            self._here = False  # the environment's state is unknown
            if refused.code == "SESSION_ERROR":
                await self.close()
            if refused.code not in ("EXECUTION_ERROR", "SESSION_ERROR") or action in (self._seen.listed or ()):
                raise self._failed(f"action {action[:80]!r}", refused) from None
            return self._nothing()
        reward = float(told.reward or 0)
        total = self._total + reward
        score, seen = self._rules.scored(self._task, reward, total, told.done), self._rules.seen(told)
        done = told.done or score == 1
        if done:
            seen.listed = ()
        self._total, self._score, self._seen = total, score, seen
        self._sent.append(message)
        info = {"raw_score": total, "valid": True, "disaster": False}
        return Step(seen, score, done, info)

    async def _return(self) -> None:
        """Restore the server's environment to its state before the connection broke or an action failed in it."""
        seen = await self._begin()
        connection = await self._connected()
        for message in self._sent:
            try:
                seen = self._rules.seen(await connection.ask("step", message))
            except Refused as refused:
                raise self._failed("an action sent again", refused) from None
        if seen != self._seen:
            raise EnvError(f"{self._server.name}: the same actions led elsewhere after a new beginning")

    async def _again_if_dropped(self, call: Callable[[], Awaitable[T]]) -> T:
        for retry in range(self._retries + 1):
            if retry:
                await asyncio.sleep(BACKOFF * 2 ** (retry - 1))
            try:
                return await call()
            except Dropped as error:
                with suppress(EnvError):
                    await self.close()
                dropped = error
        if isinstance(dropped.__cause__, Refused):
            raise UserError(
                f"{self._server.name}: {dropped}; lower env.server_concurrency, or raise the server's limit of "
                "sessions (max_concurrent_envs)."
            )
        if not self._server.answered:
            raise UserError(f"nothing answers at {self._server.name} ({dropped}); start the server, or fix env.name.")
        raise EnvError(f"{self._server.name}: {dropped}, {self._retries + 1} times")

    async def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = await self._server.connect()
        return self._connection

    def _failed(self, what: str, refused: Refused) -> EnvError:
        return EnvError(f"{self._server.name}: {what} failed on the server ({refused.code}: {refused})")

    def _nothing(self) -> Step:
        """The step of an invalid action; the possible actions stay the same."""
        seen = Seen(NOTHING)
        seen.listed = self._seen.listed
        return Step(seen, self._score, False, {"raw_score": self._total, "valid": False, "disaster": False})


def filled(template: Any, values: Mapping[str, Any]) -> Any:
    """Fields with placeholders replaced by their values.

    >>> filled({"seed": "{task}", "options": ["{task}", "x"]}, {"{task}": 7})
    {'seed': 7, 'options': [7, 'x']}
    """
    if isinstance(template, Mapping):
        return {key: filled(value, values) for key, value in template.items()}
    if isinstance(template, list):
        return [filled(value, values) for value in template]
    return values.get(template, template) if isinstance(template, str) else template


def holds(template: Any, placeholder: str) -> bool:
    """Whether a message's fields contain a placeholder."""
    return filled(template, {placeholder: 0}) != template


def _can_be_sent(value: Any, levels: int) -> bool:
    """Whether a JSON value has at most that many levels and only finite numbers (1e999 is read as an infinity)."""
    if isinstance(value, float):
        return math.isfinite(value)
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return not inner or (levels > 0 and all(_can_be_sent(one, levels - 1) for one in inner))


def written(value: Any) -> str:
    """A value of an observation as text: text literally, a line for each key, else JSON.

    >>> written({"text": "go", "place": [1, 2]})
    'text: go\\nplace: [1, 2]'
    """
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return "\n".join(f"{key}: {written(inner)}" for key, inner in value.items())
    return json.dumps(value, ensure_ascii=False)
