"""The ``env`` section of environments to act in by text: which one, embedded or on a server, and how it is set up."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from selfimprove.core.params import LARGEST_SEED, Section

EnvName = Literal["textcraft", "webshop", "sciworld"]


class EnvParams(Section):
    """Where the episodes are played: embedded, or on any server that speaks AgentGym's protocol."""

    name: EnvName = "textcraft"
    server: str | None = Field(default=None, description="http://host:port of an AgentGym server; null: embedded")
    server_concurrency: int = Field(default=32, ge=1, le=10_000, description="environments held open on the server")
    server_timeout: float = Field(default=60.0, gt=0, description="seconds a call may take")
    recipes: str | None = Field(default=None, description="textcraft: a recipe file or folder; null: the embedded book")
    seed: int = Field(
        default=42, ge=0, le=LARGEST_SEED, description="textcraft: seed of the distractors and of their order"
    )
    products: int = Field(default=1000, ge=300, le=1_000_000, description="webshop: size of the generated catalogue")
    catalogue_seed: int = Field(
        default=233, ge=0, le=LARGEST_SEED, description="webshop: seed of the catalogue and of its goals"
    )
    jvms: int = Field(default=2, ge=1, le=64, description="sciworld: Java processes kept in the pool")
    map_actions: bool = Field(default=False, description="sciworld: map an action to the nearest valid one")
