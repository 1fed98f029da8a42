"""From the params' ``agent_r.env`` to the environment: one embedded copy, or the world that methods play in."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from selfimprove.envs.interface import AgentEnv, EmbeddedWorld, World

if TYPE_CHECKING:
    from selfimprove.envs.agent_params import EnvParams
    from selfimprove.envs.sciworld.jvm import JvmPool
    from selfimprove.envs.textcraft.recipes import RecipeBook


def make_agent_env(params: EnvParams) -> AgentEnv:
    """A copy of the embedded environment, whether or not ``params.server`` is set.

    Raises:
        UserError: what the environment needs is missing or wrong (a recipe file). A missing Java: at ``reset``.
    """
    if params.name == "textcraft":
        from selfimprove.envs.textcraft.env import TextCraft

        return TextCraft(_book(params.recipes), params.seed)
    if params.name == "webshop":
        from selfimprove.envs.webshop.env import WebShop

        return WebShop(products=params.products, catalogue_seed=params.catalogue_seed)
    from selfimprove.envs.sciworld.env import SciWorld

    return SciWorld(_pool(params.jvms), map_actions=params.map_actions)


def make_world(params: EnvParams) -> World:
    """Where the methods play: the embedded environment, or any AgentGym server if ``params.server`` names one.

    Raises:
        UserError: as ``make_agent_env``, or the server's address is none.
    """
    if params.server is not None:
        from selfimprove.envs.remote.client import make_remote_world

        return make_remote_world(
            params.name, params.server, params.server_concurrency, params.server_timeout, _instruction(params)
        )
    if params.name == "sciworld":
        from selfimprove.envs.sciworld.env import sciworld_world

        return sciworld_world(params)
    return EmbeddedWorld(make_agent_env(params))


def _instruction(params: EnvParams) -> str:
    """The first user message, without making the environment: a server's ScienceWorld needs no Java here."""
    if params.name == "textcraft":
        from selfimprove.envs.textcraft.env import TextCraft

        return TextCraft.instruction
    if params.name == "webshop":
        from selfimprove.envs.webshop.env import WebShop

        return WebShop.instruction
    from selfimprove.envs.sciworld.env import INSTRUCTION

    return INSTRUCTION


@lru_cache(maxsize=2)
def _book(path: str | None) -> RecipeBook:
    """Read once, shared by every copy."""
    from selfimprove.envs.textcraft.recipes import RecipeBook

    return RecipeBook.load(None if path is None else Path(path))


@lru_cache(maxsize=1)
def _pool(jvms: int) -> JvmPool:
    """The Java processes that all copies made here share; they end with this process."""
    from selfimprove.envs.sciworld.jvm import JvmPool

    return JvmPool(jvms)
