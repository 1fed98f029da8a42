"""The shop and a shopper's position in it: immutable states, and their transitions by searches and clicks.

Pages are linked as in the original (docs/agent-r.md, A37)::

    index --search--> results --click product--> item --click Description / Features / Reviews--> sub
                      (50 hits, 10 a page)       item --click Buy Now--> done

``search[...]`` works on every page except the last. A new search, ``back to search`` and ``< prev`` on an item discard
the chosen options; ``< prev`` on a sub page keeps them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Literal, NamedTuple

from selfimprove.envs.webshop.catalogue import Product, generate
from selfimprove.envs.webshop.goals import Goal, make_goals
from selfimprove.envs.webshop.search import Index

PAGE_SIZE = 10
SUB_PAGES = ("Description", "Features", "Reviews")

Place = Literal["index", "results", "item", "sub", "done"]


@dataclass(frozen=True)
class Shop:
    """The immutable data that all shoppers share, built once per process and arguments."""

    products: tuple[Product, ...]
    by_id: Mapping[str, Product]
    goals: tuple[Goal, ...]
    index: Index


@lru_cache(maxsize=4)
def open_shop(products: int, catalogue_seed: int) -> Shop:
    """The shop with a generated catalogue (about 0.3 s for 1,000 products the first time)."""
    catalogue = generate(products, catalogue_seed)
    by_id = MappingProxyType({product.id: product for product in catalogue})
    return Shop(catalogue, by_id, make_goals(catalogue, catalogue_seed), Index(catalogue))


class ShopState(NamedTuple):
    """A state of an episode.

    ``page`` is the page of results, from 1; ``product`` an id; ``options`` the chosen (name, value) pairs in the order
    of their first choice; ``sub`` the current sub page; ``reward`` the score after the purchase.
    """

    task: int
    place: Place = "index"
    keywords: str = ""
    page: int = 1
    product: str = ""
    options: tuple[tuple[str, str], ...] = ()
    sub: str = ""
    reward: float = 0.0


class Click(NamedTuple):
    """A clickable element: a button, a product (its id) or an option (its name and value)."""

    kind: Literal["button", "product", "option"]
    name: str
    value: str = ""


def hits(shop: Shop, state: ShopState) -> list[Product]:
    """All results of the last search, best first."""
    return [shop.products[place] for place in shop.index.search(state.keywords)]


def shown(shop: Shop, state: ShopState) -> list[Product]:
    """The results on the current page; none beyond the last page."""
    return hits(shop, state)[(state.page - 1) * PAGE_SIZE : state.page * PAGE_SIZE]


def clickables(shop: Shop, state: ShopState) -> dict[str, Click]:
    """Lower-cased text -> element accepted by ``click[...]``, in the original's order: buttons, products, options.

    If a text is ambiguous, the later element takes precedence.
    """
    found: dict[str, Click] = {}
    if state.place in ("results", "item", "sub"):
        found["back to search"] = Click("button", "back to search")
    if state.place in ("item", "sub") or (state.place == "results" and state.page > 1):
        found["< prev"] = Click("button", "< prev")
    if state.place == "results":
        found["next >"] = Click("button", "next >")  # also on the last page, as in the original
        found |= {product.id.lower(): Click("product", product.id) for product in shown(shop, state)}
    if state.place == "item":
        found |= {name.lower(): Click("button", name.lower()) for name in (*SUB_PAGES, "Buy Now")}
        for name, values in shop.by_id[state.product].options:
            found |= {value: Click("option", name, value) for value in values}
    return found


def search(state: ShopState, keywords: str) -> ShopState:
    """The first page of results; as in the original, searching is possible from any page."""
    return ShopState(state.task, "results", keywords)


def click(state: ShopState, target: Click) -> ShopState:
    """The state after a click; ``buy now`` leads to ``done``, without the score."""
    if target.kind == "product":
        return state._replace(place="item", product=target.name)
    if target.kind == "option":
        return state._replace(options=tuple((dict(state.options) | {target.name: target.value}).items()))
    if target.name == "back to search":
        return ShopState(state.task)
    if target.name == "next >":
        return state._replace(page=state.page + 1)
    if target.name == "< prev" and state.place == "results":
        return state._replace(page=state.page - 1)
    if target.name == "< prev" and state.place == "item":
        return state._replace(place="results", product="", options=())
    if target.name == "< prev":
        return state._replace(place="item", sub="")
    if target.name == "buy now":
        return state._replace(place="done")
    return state._replace(place="sub", sub=target.name)


def parse_action(action: str) -> tuple[str, str]:
    """``search[Red shirt] please`` -> ("search", "red shirt"); ("", "") if there is no non-empty bracket.

    Equivalent to the original's ``(.+)\\[(.+)\\]``, but in linear time: only the first line counts, text after its last
    closing bracket is ignored, and the argument, lower-cased, starts after the last opening bracket that leaves it at
    least one character.
    """
    line = action.strip().partition("\n")[0]
    end = line.rfind("]")
    start = line.rfind("[", 1, max(end - 1, 1))
    return (line[:start], line[start + 1 : end].lower()) if start > 0 else ("", "")
