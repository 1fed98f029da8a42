"""Generates a seeded catalogue: products in families of near-duplicates, so that the shopper must compare details.

A product of the default catalogue and its near-duplicates::

    id           B0653
    title        Kelda Classic Style Warm Lining Shirt
    price        $32.0
    options      color: black, white, green; size: small, medium, large
    features     Classic style. Warm lining. Daily wear. Quick drying.
    category     Clothing, Shoes & Jewelry › Clothing › Shirts
    near-twins   B0092, the same by Corvi; B2258, the same for $107.0; B9034, in green and brown only

The original's 1,000 products are not obtainable, so these products have new ids and texts in the original's fields.
Everything is drawn from the seed, including prices within a range (which the original draws unseeded).
"""

from dataclasses import dataclass, replace
from random import Random

from selfimprove.core.seeds import rng
from selfimprove.core.sums import float_sum
from selfimprove.envs.webshop.catalogue_words import BRANDS, DEPARTMENTS, OPTIONS, REVIEWS, Department, Kind


@dataclass(frozen=True)
class Review:
    """A buyer's review: a title, 1 to 5 stars, a text."""

    title: str
    score: float
    body: str


@dataclass(frozen=True)
class Product:
    """One product, in the original's fields.

    ``price`` is the price paid, in dollars; ``pricing`` is what the page shows: that price, or the lowest and highest.
    ``options`` contains each option's name and values, in the page's order. ``goal_attributes`` is the subset of
    ``attributes`` that an instruction requests.
    """

    id: str
    title: str
    category: str
    query: str
    product_category: str
    attributes: tuple[str, ...]
    goal_attributes: tuple[str, ...]
    bullet_points: tuple[str, ...]
    description: str
    pricing: tuple[float, ...]
    price: float
    options: tuple[tuple[str, tuple[str, ...]], ...]
    reviews: tuple[Review, ...] = ()

    @property
    def price_tag(self) -> str:
        """The price as shown on pages: ``$24.5`` or ``$24.5 to $31.0``."""
        return " to ".join(f"${price}" for price in self.pricing)

    @property
    def rating(self) -> str:
        """The mean of the reviews' stars; ``N.A.`` without reviews."""
        if not self.reviews:
            return "N.A."
        return f"{float_sum(review.score for review in self.reviews) / len(self.reviews):.1f}"


def generate(products: int, seed: int) -> tuple[Product, ...]:
    """``products`` distinct products, in index order; a deterministic function of the arguments."""
    draws = rng("webshop", "catalogue", seed)
    digits = max(4, len(str(products)))
    ids = draws.sample(range(10**digits), products)  # random, so that an id reveals nothing about neighbouring products
    families: dict[tuple[object, ...], _Draft] = {}
    while len(families) < products:
        for draft in _family(draws):
            families.setdefault((draft.kind, draft.brand, draft.attributes, draft.price, draft.options), draft)
    drafts = list(families.values())[:products]
    draws.shuffle(drafts)
    return tuple(_finish(draws, draft, f"B{number:0{digits}}") for draft, number in zip(drafts, ids, strict=True))


# --- families --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Draft:
    """The fields in which near-duplicates differ. The title has the first two ``attributes``, the features all."""

    department: Department
    shelf: str
    kind: Kind
    brand: str
    attributes: tuple[str, ...]
    price: float
    options: tuple[tuple[str, tuple[str, ...]], ...]


_SHELVES = [
    (department, shelf, kind)
    for department in DEPARTMENTS
    for shelf, kinds in department.shelves.items()
    for kind in kinds
]


def _family(draws: Random) -> list[_Draft]:
    """A product and one to three near-duplicates, each with one field changed."""
    department, shelf, kind = draws.choice(_SHELVES)
    first = _Draft(
        department=department,
        shelf=shelf,
        kind=kind,
        brand=draws.choice(BRANDS),
        attributes=tuple(draws.sample(department.attributes, 4)),
        price=draws.randint(2 * kind.prices[0], 2 * kind.prices[1]) / 2,
        options=tuple(_offer(draws, group) for group in kind.options),
    )
    changes = draws.sample((_other_brand, _other_attribute, _dearer, _other_values), draws.randint(1, 3))
    return [first, *(change(draws, first) for change in changes)]


def _offer(draws: Random, group: str) -> tuple[str, tuple[str, ...]]:
    """Two to four of a group's values, in the group's order."""
    name, values = OPTIONS[group]
    offered = set(draws.sample(range(len(values)), draws.randint(2, min(4, len(values)))))
    return name, tuple(value for place, value in enumerate(values) if place in offered)


def _other_brand(draws: Random, draft: _Draft) -> _Draft:
    return replace(draft, brand=draws.choice([brand for brand in BRANDS if brand != draft.brand]))


def _other_attribute(draws: Random, draft: _Draft) -> _Draft:
    """Replace one of the two attributes in the title."""
    attributes = list(draft.attributes)
    unused = [attribute for attribute in draft.department.attributes if attribute not in attributes]
    attributes[draws.randint(0, 1)] = draws.choice(unused)
    return replace(draft, attributes=tuple(attributes))


def _dearer(draws: Random, draft: _Draft) -> _Draft:
    """Raise the price by 40 to 80 dollars; a price limit is at most 40 dollars above the first product's price."""
    return replace(draft, price=draft.price + draws.randint(80, 160) / 2)


def _other_values(draws: Random, draft: _Draft) -> _Draft:
    return replace(draft, options=tuple(_offer(draws, group) for group in draft.kind.options))


# --- texts -----------------------------------------------------------------------------------------------------------


def _finish(draws: Random, draft: _Draft, product_id: str) -> Product:
    kind, attributes = draft.kind, draft.attributes
    # Three in ten goals request an attribute that is not in the title.
    asked = attributes[:2] if draws.random() < 0.7 else (attributes[draws.randint(0, 1)], attributes[2])
    pricing: tuple[float, ...] = (draft.price,)
    price = draft.price
    if draws.random() < 0.1:
        pricing = (draft.price, draft.price + draws.randint(2, 16) / 2)
        price = round(draws.uniform(*pricing), 2)
    reviews = tuple(
        Review(title, score, body.format(noun=kind.noun, use=kind.use))
        for title, score, body in draws.sample(REVIEWS, draws.choice((0, 0, 1, 2)))
    )
    return Product(
        id=product_id,
        title=" ".join([draft.brand, *attributes[:2], kind.noun]).title(),
        category=draft.department.category,
        query=kind.query,
        product_category=" › ".join([draft.department.label, draft.shelf, kind.query.title()]),
        attributes=attributes,
        goal_attributes=asked,
        bullet_points=tuple(attribute.capitalize() for attribute in attributes),
        description=f"{kind.noun.capitalize()} for {kind.use}, {attributes[2]}, {attributes[3]}.",
        pricing=pricing,
        price=price,
        options=draft.options,
        reviews=reviews,
    )
