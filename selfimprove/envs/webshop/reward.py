"""The score of a purchase, in [0, 1]: ``r_type * (attributes + options + price_ok) / (|attributes| + |options| + 1)``.

    goal      Find me classic style, warm lining shirts with color: green, and size: small, and price lower than 70.00
              dollars
    purchase  Kelda Classic Style Warm Lining Shirt, color green, size large, $107.0
    score     1 * (2 + 1 + 0) / (2 + 2 + 1) = 0.6

See docs/agent-r.md, A38. Fuzzy comparisons are thefuzz's token-set ratio, rounded as it rounds. The original
finds nouns with a part-of-speech tagger; here any function can do that, and a lexicon of what are no nouns is the
default.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rapidfuzz import fuzz

from selfimprove.envs.webshop.catalogue import Product
from selfimprove.envs.webshop.goals import Goal

Nouns = Callable[[str], Sequence[str]]
"""The nouns and names of a title, lower-cased, with repetitions."""

THRESHOLD = 85
"""A token-set ratio above it is a match."""

COLORS = tuple(
    """
    alabaster apricot aqua ash asphalt azure banana beige black blue blush bordeaux bronze brown burgundy camel camo
    caramel champagne charcoal cheetah chestnut chocolate christmas coffee cognac copper coral cranberry cream crystal
    dark denim eggplant elephant espresso fuchsia gold granite grape graphite grass gray green grey heather indigo
    ivory ivy khaki lavender lemon leopard light lilac lime magenta maroon mauve merlot midnight mint mocha multicolor
    mushroom mustard natural navy nude olive orange peach pewter pink plum purple rainbow red rose royal rust sand
    sapphire seashell silver skull slate steel stone stonewash sunflower tan taupe teal tiger turquoise violet walnut
    wheat white wine yellow
    """.split()  # noqa: SIM905
)
"""What counts as a colour, in the order in which the original looks for them."""


@dataclass(frozen=True)
class Score:
    """``reward`` and what it is made of: counts of matched attributes and options, and the three checks of the type."""

    reward: float
    r_type: float
    attributes: int
    options: int
    price: bool
    query_match: bool
    category_match: bool
    title_score: float


def score(goal: Goal, product: Product, options: Mapping[str, str], nouns: Nouns | None = None) -> Score:
    """The purchase of ``product`` with the chosen ``options`` (name to value), judged by ``goal``."""
    query = product.query == goal.query
    category = len(_categories(product.product_category) & _categories(goal.product_category)) >= 2
    overlap = title_overlap(goal.title, product.title, nouns or lexicon_nouns)
    r_type = type_factor(query, category, overlap)
    attributes = sum(has_attribute(product, wanted) for wanted in goal.attributes)
    chosen = [reduce_color(value) for value in options.values()]
    matched = sum(any(similar(have, wanted) for have in chosen) for wanted in map(_wanted_option, goal.options))
    price = product.price <= goal.price_upper
    asked = len(goal.attributes) + len(goal.options) + 1
    reward = r_type * ((attributes + matched + price) / asked)
    return Score(reward, r_type, attributes, matched, price, query, category, overlap)


def type_factor(query_match: bool, category_match: bool, title_score: float) -> float:
    """How far the product is of the kind that was asked for: 1, 0.5, 0.1 or 0."""
    if title_score == 0:
        return 0.0
    if title_score < 0.1:
        return 0.1
    return 1.0 if query_match or category_match or title_score > 0.2 else 0.5


def title_overlap(wanted: str, have: str, nouns: Nouns) -> float:
    """Different nouns that both titles have, by the nouns of the wanted one; 0.2 when that has none."""
    asked = list(nouns(wanted))
    return len(set(asked) & set(nouns(have))) / len(asked) if asked else 0.2


def has_attribute(product: Product, wanted: str) -> bool:
    """Whether one of the product's attributes is like the wanted one, or one of its texts contains it."""
    if any(similar(have, wanted) for have in product.attributes):
        return True
    texts = (product.title, " ".join(product.bullet_points), product.description)
    return any(wanted in text.lower() for text in texts)


def similar(a: str, b: str) -> bool:
    """Whether thefuzz's token-set ratio, a whole number, is above ``THRESHOLD``."""
    return round(fuzz.token_set_ratio(_plain(a), _plain(b))) > THRESHOLD


def reduce_color(value: str) -> str:
    """The first known colour that the text contains ("dark navy blue" -> "blue"), or the text itself."""
    return next((color for color in COLORS if color in value), value)


def lexicon_nouns(title: str) -> list[str]:
    """Every word of two letters or more that is not known to be something else than a noun or a name."""
    return [word for word in re.findall(r"[^\W\d_]{2,}", title.lower()) if word not in NOT_NOUNS]


NOT_NOUNS = frozenset(
    """
    an and as at by for from in into of off on onto or over per the their this to under up with without
    all best big cancelling certified charging classic clean clinically cold daily deep double
    drying dry easy eco extra fair fast fine free fresh friendly full gentle great heavy high hot large lasting light
    little long low made medium mini mixed natural new no non old organic plush proof pure quick resistant rich roasted
    safe saving sensitive short sided slim slip slowly small soft solid stable super tall tested thick thin top warm
    waterproof wide
    """.split()  # noqa: SIM905
)
"""Function words, and the adjectives, adverbs and participles that titles of shops are full of."""


def _wanted_option(option: tuple[str, str] | str) -> str:
    """As the original compares it: a human goal's value is reduced to its colour if it contains one, a synthetic
    goal's (name, value) pair only if the value is a colour's very name; else the pair is written out.
    """
    if isinstance(option, str):
        return reduce_color(option)
    return next((color for color in COLORS if color in option), str(option))


def _categories(path: str) -> set[str]:
    return {part.strip() for part in path.split("›")}


_LATIN_1 = dict.fromkeys(range(128, 256))


def _plain(text: str) -> str:
    """thefuzz's preparation: Latin-1's upper half dropped, lower case, all but letters, digits and ``_`` a space.

    That is release 0.19, which the original pins; later ones make a space of ``_``, too.
    """
    return re.sub(r"\W", " ", text.translate(_LATIN_1)).lower().strip()
