"""The score of a purchase, in [0, 1]: ``r_type * (attributes + options + price_ok) / (|attributes| + |options| + 1)``.

    goal      Find me classic style, warm lining shirts with color: green, and size: small, and price lower than 70.00
              dollars
    purchase  Kelda Classic Style Warm Lining Shirt, color green, size large, $107.0
    score     1 * (2 + 1 + 0) / (2 + 2 + 1) = 0.6

See docs/agent-r.md, A38. Fuzzy comparisons use thefuzz's token-set ratio, with its rounding. The original finds nouns
with a part-of-speech tagger; here the function is replaceable, and the default uses a lexicon of words that are not
nouns.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rapidfuzz import fuzz

from selfimprove.envs.webshop.catalogue import Product
from selfimprove.envs.webshop.goals import Goal

Nouns = Callable[[str], Sequence[str]]
"""Returns the nouns and names in a title, lower-cased, with repetitions."""

THRESHOLD = 85
"""Token-set ratios above this value are matches."""

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
"""Words that count as colours, in the order of the original's search."""


@dataclass(frozen=True)
class Score:
    """``reward`` and its components: the number of matched attributes and options, the price check, the type checks."""

    reward: float
    r_type: float
    attributes: int
    options: int
    price: bool
    query_match: bool
    category_match: bool
    title_score: float


def score(goal: Goal, product: Product, options: Mapping[str, str], nouns: Nouns | None = None) -> Score:
    """Score the purchase of ``product`` with the chosen ``options`` (name -> value) against ``goal``."""
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
    """The degree to which the product is of the requested type: 1, 0.5, 0.1 or 0."""
    if title_score == 0:
        return 0.0
    if title_score < 0.1:
        return 0.1
    return 1.0 if query_match or category_match or title_score > 0.2 else 0.5


def title_overlap(wanted: str, have: str, nouns: Nouns) -> float:
    """The number of distinct nouns in both titles, divided by the wanted title's nouns; 0.2 if that title has none."""
    asked = list(nouns(wanted))
    return len(set(asked) & set(nouns(have))) / len(asked) if asked else 0.2


def has_attribute(product: Product, wanted: str) -> bool:
    """Whether one of the product's attributes is similar to the wanted one, or one of its texts contains it."""
    if any(similar(have, wanted) for have in product.attributes):
        return True
    texts = (product.title, " ".join(product.bullet_points), product.description)
    return any(wanted in text.lower() for text in texts)


def similar(a: str, b: str) -> bool:
    """Whether thefuzz's token-set ratio, rounded to an integer, is above ``THRESHOLD``."""
    return round(fuzz.token_set_ratio(_plain(a), _plain(b))) > THRESHOLD


def reduce_color(value: str) -> str:
    """The first colour in ``COLORS`` that the text contains ("dark navy blue" -> "blue"), or the text itself."""
    return next((color for color in COLORS if color in value), value)


def lexicon_nouns(title: str) -> list[str]:
    """All words of two or more letters that are not in ``NOT_NOUNS``."""
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
"""Function words, and adjectives, adverbs and participles that are common in product titles."""


def _wanted_option(option: tuple[str, str] | str) -> str:
    """The option in the original's form for comparison: a human goal's value is reduced to a colour that it contains, a
    synthetic goal's (name, value) pair only if one of the two equals a colour; otherwise the pair becomes a string.
    """
    if isinstance(option, str):
        return reduce_color(option)
    return next((color for color in COLORS if color in option), str(option))


def _categories(path: str) -> set[str]:
    return {part.strip() for part in path.split("›")}


_LATIN_1 = dict.fromkeys(range(128, 256))


def _plain(text: str) -> str:
    """thefuzz's preprocessing: remove Latin-1's upper half, lower-case, replace all but letters, digits and ``_``.

    This is that of release 0.19, which the original pins; later releases also replace ``_`` by a space.
    """
    return re.sub(r"\W", " ", text.translate(_LATIN_1)).lower().strip()
