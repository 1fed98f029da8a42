"""Params of an OpenEnv server's environment: ``openenv:<address>``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from selfimprove.core.overlay import texts
from selfimprove.envs.interface import AgentEnv, World
from selfimprove.envs.params import TextParams

if TYPE_CHECKING:
    from selfimprove.envs.openenv.pool import Pool

PREFIX = "openenv"
ADDRESS = re.compile(r"https?://[\w.-]+(:[0-9]{1,5})?(/[\w./-]*)?")


class OpenEnvParams(TextParams):
    """Any environment on an OpenEnv server whose actions can be written as text."""

    name: str = Field(pattern=rf"^{PREFIX}:", description="openenv:http://host:port, the server's address")
    called: str = Field(default=PREFIX, pattern=r"^[\w.-]{1,60}$", description="name of the environment in outputs")
    about: str = Field(default="", description='description of the environment at the start of the prompt; "": none')
    reset: dict[str, Any] = Field(
        default={"seed": "{task}"}, description="fields of a reset request; {task} is replaced by the task's number"
    )
    action: str | dict[str, Any] = Field(
        default="message",
        description="the action field that receives the text; or a mapping of all fields, in which {action} is "
        "replaced by the text, {number} by its index in actions or the text as a number, and {json} by the text as "
        "JSON",
    )
    actions: list[str] = Field(
        default=[], description="the complete list of actions; []: any text, or the actions in the field listed"
    )
    listed: str = Field(
        default="", description='the observation field that lists the currently available actions; "": none'
    )
    field: str = Field(
        default="", description='the observation field that is shown, a.b or a.-1 for nested fields; "": all fields'
    )
    score: Literal["return", "last", "terminated"] | float = Field(
        default="return",
        description="return: the sum of the rewards divided by success_return, which must be in [0, 1]; last: the "
        "last reward; terminated: 1 if the episode ends, else 0; a number: 1 once a step's reward is at least this "
        "number, else 0",
    )
    success_return: float = Field(default=1.0, gt=0, description="with score: return, the sum of rewards that scores 1")
    tasks: int = Field(default=2000, ge=1, le=1_000_000, description="number of tasks, numbered from 0")
    experts: str | None = Field(
        default=None,
        description="JSONL of action sequences with reward 1, used for the warm start; null: found by search over "
        "listed actions",
    )
    search: int = Field(default=2000, ge=1, le=1_000_000, description="maximum number of states visited by a search")
    retries: int = Field(default=3, ge=0, le=20, description="reconnection attempts per call after a lost connection")
    max_message: int = Field(default=1_000_000, ge=1000, description="maximum size of a server response in bytes")

    prefix: ClassVar[str] = PREFIX
    names_module: ClassVar[bool] = False
    paper: ClassVar[str] = ""

    @model_validator(mode="after")
    def _can_be_played(self) -> OpenEnvParams:
        if not ADDRESS.fullmatch(self.name.partition(":")[2]):
            raise ValueError(f"name: {PREFIX}: must be followed by an address like http://127.0.0.1:8000")
        if self.server is not None:
            raise ValueError("server: the address belongs in name; set null")
        if len(set(self.actions)) < len(self.actions):
            raise ValueError("actions: an action is listed twice; list each once")
        if isinstance(self.action, dict) and not {"{action}", "{number}", "{json}"} & set(texts(self.action)):
            raise ValueError("action: no field is {action}, {number} or {json}; use one for the action's text")
        return self

    @property
    def world_name(self) -> str:
        """See ``EnvParams``."""
        return self.called

    def instruction(self) -> str:
        what = f"one of these actions: {', '.join(self.actions)}" if self.actions else "one action"
        about = f"{self.about}\n" if self.about else ""
        return f"{about}Answer each time with a thought and {what}.\nThought: why\nAction: the action"

    def make(self) -> AgentEnv:
        """See ``TextParams``. Raises: UserError: nothing answers there, or the answers do not fit."""
        from selfimprove.core.records import read_rows
        from selfimprove.envs.contract import check_once
        from selfimprove.envs.openenv.env import OpenEnv, read_experts

        where = self.experts and Path(self.experts)
        experts = read_experts(read_rows(where), where, self.tasks) if where else {}

        def made() -> OpenEnv:
            return OpenEnv(self._pool(), self.tasks, experts, self.search)

        check_once(self.name, self.model_dump_json(), made, replays=False)  # diverging replays are counted instead
        return made()

    def world(self) -> World:
        self.make()  # checks the server
        return self._pool().join()

    def embedded_world(self) -> World:
        return self.world()

    def _pool(self) -> Pool:
        """This process's pool of sessions on the server."""
        from selfimprove.envs.openenv.link import Server
        from selfimprove.envs.openenv.pool import Pool, pool
        from selfimprove.envs.openenv.session import Rules

        def made() -> Pool:
            whole = isinstance(self.action, dict) or self.action == "{json}"
            action = self.action if whole else {str(self.action): "{action}"}
            rules = Rules(
                self.name, self.reset, action, self.actions, self.listed, self.field, self.score, self.success_return
            )
            server = Server(self.name, self.server_timeout, self.max_message)
            return Pool(self.called, self.instruction(), server, rules, self.server_concurrency, self.retries)

        return pool(self.model_dump_json(), made)
