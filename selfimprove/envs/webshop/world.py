"""The ``env`` section of WebShop."""

from typing import ClassVar, Literal

from pydantic import Field

from selfimprove.core.params import LARGEST_SEED
from selfimprove.envs.interface import AgentEnv
from selfimprove.envs.params import AgentGym, Judged, TextParams


class WebShopParams(TextParams):
    """WebShop: search for a product, compare and buy."""

    name: Literal["webshop"] = "webshop"
    products: int = Field(
        default=1000, ge=300, le=1_000_000, description="number of products in the generated catalogue"
    )
    catalogue_seed: int = Field(default=233, ge=0, le=LARGEST_SEED, description="seed of the catalogue and its goals")

    judged: ClassVar[Judged] = Judged(
        "an online shop, in which the product that an instruction asks for is to be found and bought", "shopping"
    )

    def make(self) -> AgentEnv:
        from selfimprove.envs.webshop.env import WebShop

        return WebShop(products=self.products, catalogue_seed=self.catalogue_seed)

    def instruction(self) -> str:
        from selfimprove.envs.webshop.env import WebShop

        return WebShop.instruction

    @classmethod
    def agentgym(cls) -> AgentGym:
        from selfimprove.envs.webshop.agentgym import WEBSHOP, WebShopSlot

        return AgentGym(WEBSHOP, WebShopSlot.world)
