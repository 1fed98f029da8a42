"""The scripted shopper: a path to a purchase that scores 1, from any state.

It uses the goal and the reward function: it opens the first result whose purchase earns a full score, chooses the
goal's options, and buys. From other states it goes back or searches again, whichever takes fewer actions.
"""

from selfimprove.envs.interface import Move
from selfimprove.envs.webshop.catalogue import Product
from selfimprove.envs.webshop.reward import score
from selfimprove.envs.webshop.session import PAGE_SIZE, Shop, ShopState, hits, search


def plan(shop: Shop, state: ShopState) -> list[Move]:
    """The remaining moves; [] after the purchase, or if no search finds a product that fits."""
    if state.place == "done":
        return []
    ways = [way for way in (_stay(shop, state), _walk(shop, state), _search(shop, state)) if way is not None]
    return min(ways, key=len, default=[])


def keywords(shop: Shop, task: int) -> str:
    """What to search for: the goal's keywords if they find a product that fits, else the goal product's title."""
    own = shop.goals[task].keywords
    found = hits(shop, search(ShopState(task), own))
    return own if any(fits(shop, task, product) for product in found) else shop.goals[task].title.lower()


def fits(shop: Shop, task: int, product: Product) -> bool:
    """Whether ``product`` scores 1 if bought with the goal's options."""
    return score(shop.goals[task], product, dict(_choices(shop, task, product))).reward == 1.0


def _choices(shop: Shop, task: int, product: Product) -> list[tuple[str, str]]:
    """The goal's options that the product has, in the page's order."""
    wanted = dict(option for option in shop.goals[task].options if not isinstance(option, str))
    return [(name, wanted[name]) for name, values in product.options if wanted.get(name) in values]


def _stay(shop: Shop, state: ShopState) -> list[Move] | None:
    """Buy the current product, if it fits."""
    if state.place not in ("item", "sub") or not fits(shop, state.task, shop.by_id[state.product]):
        return None
    back = [Move("I have read enough and go back to the product.", "click[< prev]")] if state.place == "sub" else []
    return [*back, *_buy(shop, state.task, shop.by_id[state.product], dict(state.options))]


def _walk(shop: Shop, state: ShopState) -> list[Move] | None:
    """Go to the closest fitting result of the last search."""
    if state.place == "index":
        return None
    back = {"results": 0, "item": 1, "sub": 2}[state.place]
    leave = [Move("This is not what I want, so I go back.", "click[< prev]")] * back
    ways = [
        [*leave, *_turn(rank // PAGE_SIZE + 1 - state.page), *_open(shop, state.task, product)]
        for rank, product in enumerate(hits(shop, state))
        if fits(shop, state.task, product)
    ]
    return min(ways, key=len, default=None)


def _search(shop: Shop, state: ShopState) -> list[Move] | None:
    """Search again and open the first result that fits."""
    words = keywords(shop, state.task)
    first = Move("I search for the product with the words of the instruction.", f"search[{words}]")
    for rank, product in enumerate(hits(shop, search(state, words))):
        if fits(shop, state.task, product):
            return [first, *_turn(rank // PAGE_SIZE), *_open(shop, state.task, product)]
    return None


def _turn(pages: int) -> list[Move]:
    """Turn ``pages`` pages of results, back if negative."""
    if pages < 0:
        return [Move("It was on an earlier page, so I go back.", "click[< prev]")] * -pages
    return [Move("Nothing here fits, so I look at the next page.", "click[next >]")] * pages


def _open(shop: Shop, task: int, product: Product) -> list[Move]:
    opening = Move(f"{product.id} fits at {product.price_tag}, so I open it.", f"click[{product.id.lower()}]")
    return [opening, *_buy(shop, task, product, {})]


def _buy(shop: Shop, task: int, product: Product, chosen: dict[str, str]) -> list[Move]:
    missing = [(name, value) for name, value in _choices(shop, task, product) if chosen.get(name) != value]
    choose = [Move(f"I choose {name} {value}.", f"click[{value}]") for name, value in missing]
    return [*choose, Move("Everything is chosen, so I buy it.", "click[buy now]")]
