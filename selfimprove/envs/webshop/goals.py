"""Goals: one for every product and combination of its options.

A goal's instruction::

    Find me classic style, warm lining shirts with color: green, and size: small, and price lower than 70.00 dollars

These are the original's synthetic goals, which AgentGym plays (docs/agent-r.md, A36).
"""

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass

from selfimprove.core.seeds import rng
from selfimprove.envs.webshop.catalogue import Product

NO_LIMIT = 1_000_000.0
"""The price limit of a goal without a price clause."""

_STEPS = [10.0 * step for step in range(1, 100)]


@dataclass(frozen=True)
class Goal:
    """The requested product, in the original's fields.

    ``options`` contains (name, value) pairs in synthetic goals and plain values in human ones; the reward compares them
    differently. ``price_upper`` is in dollars.
    """

    id: str
    category: str
    query: str
    title: str
    product_category: str
    attributes: tuple[str, ...]
    options: tuple[tuple[str, str], ...] | tuple[str, ...]
    price_upper: float
    instruction: str

    @property
    def keywords(self) -> str:
        """The search keywords: the attributes and the kind of product."""
        return " ".join([*self.attributes, self.query])


def make_goals(products: Sequence[Product], seed: int) -> tuple[Goal, ...]:
    """The goals of all products, shuffled as in the original (whose seed is 233); a task id is an index into them."""
    goals = [goal for product in products for goal in _goals_of(product, seed)]
    random.Random(seed).shuffle(goals)
    return tuple(goals)


def price_limit(price: float, draws: random.Random) -> float:
    """The larger of two values drawn from the next four multiples of 10 above ``price``, up to 990; ``NO_LIMIT`` if
    fewer than two are left.
    """
    above = [step for step in _STEPS if step > price][:4]
    return max(draws.sample(above, 2)) if len(above) >= 2 else NO_LIMIT


def instruction(wish: str, options: Sequence[tuple[str, str]], price_upper: float) -> str:
    """``wish`` with options and price limit, in the original's wording."""
    chosen = ", and ".join(f"{name}: {value}" for name, value in options)
    limit = "" if price_upper == NO_LIMIT else f", and price lower than {price_upper:.2f} dollars"
    return f"{wish}{' with ' if chosen else ''}{chosen}{limit}"


def _goals_of(product: Product, seed: int) -> list[Goal]:
    upper = price_limit(product.price, rng("webshop", "price", seed, product.id))
    wish = f"Find me {', '.join(product.goal_attributes)} {product.query}"
    groups = [[(name, value) for value in values] for name, values in sorted(product.options)]
    return [
        Goal(
            id=product.id,
            category=product.category,
            query=product.query,
            title=product.title,
            product_category=product.product_category,
            attributes=product.goal_attributes,
            options=combination,
            price_upper=upper,
            instruction=instruction(wish, combination, upper),
        )
        for combination in itertools.product(*groups)
    ]
