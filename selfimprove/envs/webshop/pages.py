"""The text of every page: its visible strings, joined by `` [SEP] `` as in the original.

The results page::

    Instruction: [SEP] Find me ... [SEP] Back to Search [SEP] Page 1 (Total results: 50) [SEP] Next > [SEP]
    B2304 [SEP] Yarrow Warm Lining Classic Style Shirt [SEP] $20.0 [SEP] B4414 [SEP] ...

Chosen options are not shown, as in the original.
"""

import json

from selfimprove.envs.webshop.catalogue import Product
from selfimprove.envs.webshop.session import SUB_PAGES, Shop, ShopState, hits, shown

SEPARATOR = " [SEP] "


def render(shop: Shop, state: ShopState) -> str:
    """The page shown to the shopper; the last page omits the score, because no prompt may contain it."""
    if state.place == "done":
        return SEPARATOR.join(_receipt(state))
    head = ["Instruction:", shop.goals[state.task].instruction]
    if state.place == "index":
        return SEPARATOR.join(["WebShop", *head, "Search"])
    head.append("Back to Search")
    if state.place == "results":
        return SEPARATOR.join([*head, *_results(shop, state)])
    head.append("< Prev")
    product = shop.by_id[state.product]
    return SEPARATOR.join([*head, *(_item(product) if state.place == "item" else _sub_page(product, state.sub))])


def final_page(state: ShopState) -> str:
    """The original's complete last page, with the score; for logs and servers, not for prompts."""
    score = ["Reward", "Your score (min 0.0, max 1.0)", str(state.reward), "Reward Details", "None"]
    return SEPARATOR.join([*_receipt(state), *score])


def _results(shop: Shop, state: ShopState) -> list[str]:
    total = len(hits(shop, state))
    buttons = ["< Prev", "Next >"] if state.page > 1 else ["Next >"]
    listed = [text for product in shown(shop, state) for text in (product.id, product.title, product.price_tag)]
    return [f"Page {state.page} (Total results: {total})", *buttons, *listed]


def _item(product: Product) -> list[str]:
    options = [text for name, values in product.options for text in (name, *values)]
    facts = [product.title, f"Price: {product.price_tag}", f"Rating: {product.rating}"]
    return [*options, *facts, *SUB_PAGES, "Buy Now"]


def _sub_page(product: Product, sub: str) -> list[str]:
    if sub == "description":
        return [product.description]
    if sub == "features":
        return list(product.bullet_points)
    reviews = [text for review in product.reviews for text in (f'"{review.title}"', str(review.score), review.body)]
    return reviews or ["No reviews found"]


def _receipt(state: ShopState) -> list[str]:
    """The last page up to the score. The original leaves most fields empty; "instuction" is its spelling."""
    labels = ("attrs", "category", "query", "product category")
    bought = ["asin", state.product, "options", json.dumps(dict(state.options), sort_keys=True)]
    bought += [text for label in labels for text in (label, "None")]
    target = ["asin", "options", "attrs", "price upper", "instuction text", "category", "product category", "query"]
    thanks = ["Thank you for shopping with us!", "Your code:", "None", "(Paste it in your MTurk interface.)"]
    return [*thanks, "Purchased", *bought, "Target", *target, "Goal", "None"]
