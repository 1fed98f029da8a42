"""The generated catalogue, its goals and its search engine."""

import hashlib
import itertools
import random
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfimprove.envs.webshop import catalogue as catalogue_module
from selfimprove.envs.webshop.catalogue import Product, generate
from selfimprove.envs.webshop.catalogue_words import BRANDS, DEPARTMENTS, OPTIONS
from selfimprove.envs.webshop.goals import NO_LIMIT, instruction, make_goals, price_limit
from selfimprove.envs.webshop.reward import similar
from selfimprove.envs.webshop.search import HITS, Index, document
from selfimprove.envs.webshop.session import open_shop


@pytest.fixture(scope="module")
def shop() -> Any:
    return open_shop(1000, 233)


def test_the_catalogue_is_large_varied_and_compact(shop: Any) -> None:
    products = shop.products
    assert len(products) == len({product.id for product in products}) == 1000
    assert {product.category for product in products} == {"beauty", "electronics", "fashion", "garden", "grocery"}
    assert len({product.query for product in products}) == 41
    assert all(4 <= len(product.title.split()) <= 8 for product in products)
    assert all(len(set(product.attributes)) == 4 for product in products)
    assert all(set(product.goal_attributes) <= set(product.attributes) for product in products)
    assert all(product.pricing[0] <= product.price <= product.pricing[-1] for product in products)
    assert 50 < sum(len(product.pricing) == 2 for product in products) < 150
    words = {word for product in products for word in re.findall(r"\w+", document(product))}
    assert len(words) < 300


def test_distractors_differ_in_one_property(shop: Any) -> None:
    def twins(**same: Any) -> Any:
        return sum(
            all((getattr(a, field) == getattr(b, field)) == equal for field, equal in same.items())
            for a, b in itertools.combinations(shop.products, 2)
        )

    assert twins(title=True, attributes=True, options=True, price=False) > 50  # more expensive
    assert twins(title=True, attributes=True, options=False, price=True) > 50  # other colours or sizes
    assert twins(title=False, attributes=True, options=True, price=True) > 50  # another brand


def test_the_example_product_in_the_module_docstring_is_accurate(shop: Any) -> None:
    told = dict(re.findall(r"^    (\S+) +(.+)$", catalogue_module.__doc__, re.MULTILINE))
    product = shop.by_id[told["id"]]
    assert told["title"] == product.title
    assert told["price"] == product.price_tag
    assert told["options"] == "; ".join(f"{name}: {', '.join(values)}" for name, values in product.options)
    assert told["features"] == " ".join(f"{point}." for point in product.bullet_points)
    assert told["category"] == product.product_category
    other, dearer, fewer = (shop.by_id[twin] for twin in re.findall(r"B\d+", told["near-twins"]))
    assert other.title.split()[1:] == product.title.split()[1:]
    assert (dearer.title, dearer.price_tag) == (product.title, "$107.0")
    assert dict(fewer.options)["color"] == ("green", "brown")


def test_catalogue_and_goals_are_functions_of_their_seed() -> None:
    assert generate(400, 1) == generate(400, 1)
    assert generate(400, 1) != generate(400, 2)
    products = generate(400, 1)
    assert make_goals(products, 1) == make_goals(products, 1)
    # the default catalogue's bytes: a change here changes every published result
    told = "\n".join(goal.instruction for goal in open_shop(1000, 233).goals)
    assert hashlib.sha256(told.encode()).hexdigest()[:16] == "b65c268037443aeb"


def test_no_word_of_the_vocabulary_is_mistaken_for_another() -> None:
    for department in DEPARTMENTS:
        for a, b in itertools.permutations(department.attributes, 2):
            assert not similar(a, b), (a, b)
        kinds = {kind for shelf in department.shelves.values() for kind in shelf}
        for kind in kinds:
            pairs = [(OPTIONS[group][0], value) for group in kind.options for value in OPTIONS[group][1]]
            assert len({value for _, value in pairs}) == len(pairs)
            for have, wanted in itertools.permutations(pairs, 2):
                assert not similar(have[1], str(wanted)), (have, wanted)
    assert len(set(BRANDS)) == len(BRANDS)


def test_there_is_a_goal_for_every_combination_of_options(shop: Any) -> None:
    wanted = [goal.id for goal in shop.goals]
    for product in shop.products[::37]:
        goals = [goal for goal in shop.goals if goal.id == product.id]
        count = 1
        for _, values in product.options:
            count *= len(values)
        assert len(goals) == count == len({goal.options for goal in goals})
        assert {name for goal in goals for name, _ in goal.options} == {name for name, _ in product.options}
        assert len({goal.price_upper for goal in goals}) == 1  # one limit per product
    assert wanted != sorted(wanted)


def test_goals_are_shuffled_as_in_the_original(shop: Any) -> None:
    ordered = [goal for product in shop.products for goal in shop.goals if goal.id == product.id]
    by_product = {product.id: place for place, product in enumerate(shop.products)}
    expected = sorted(shop.goals, key=lambda goal: by_product[goal.id])
    assert len(ordered) == len(expected)
    ids = [goal.id for goal in expected]
    random.Random(233).shuffle(ids)
    assert ids == [goal.id for goal in shop.goals]


def test_instructions_are_worded_as_in_the_original() -> None:
    options = (("color", "black"), ("size", "5x-large"))
    wish = "Find me machine wash men's sweaters"
    assert instruction(wish, options, 60.0) == (
        f"{wish} with color: black, and size: 5x-large, and price lower than 60.00 dollars"
    )
    assert instruction(wish, options[:1], NO_LIMIT) == f"{wish} with color: black"
    assert instruction(wish, (), 490.0) == f"{wish}, and price lower than 490.00 dollars"


@given(st.floats(0, 1200), st.integers(0, 10**6))
def test_a_price_limit_is_one_of_the_next_multiples_of_ten(price: float, seed: int) -> None:
    limit = price_limit(price, random.Random(seed))
    above = [10.0 * step for step in range(1, 100) if 10.0 * step > price][:4]
    if len(above) < 2:
        assert limit == NO_LIMIT
    else:
        assert limit in above[1:]  # the larger of two: never the nearest


def test_price_limits_are_as_frequent_as_in_the_original() -> None:
    limits = [price_limit(15.0, random.Random(seed)) for seed in range(3000)]
    shares = [limits.count(limit) / len(limits) for limit in (30.0, 40.0, 50.0)]
    assert np.allclose(shares, [1 / 6, 2 / 6, 3 / 6], atol=0.04)


# --- search ----------------------------------------------------------------------------------------------------------


def reference_bm25(products: Any, words: Any) -> Any:
    """BM25 as in Lucene (k1 = 0.9, b = 0.4), directly from the formula; ``words`` are already stemmed."""
    import Stemmer

    stem = Stemmer.Stemmer("english").stemWord
    stop = {"with", "for", "and", "no", "of", "the"}
    texts = [[stem(w) for w in re.findall(r"\w+", document(p)) if w not in stop] for p in products]
    mean = sum(map(len, texts)) / len(texts)
    total = np.zeros(len(products))
    for word in words:
        having = sum(word in text for text in texts)
        idf = np.log(1 + (len(texts) - having + 0.5) / (having + 0.5))
        for place, text in enumerate(texts):
            count = text.count(word)
            total[place] += idf * count / (count + 0.9 * (1 - 0.4 + 0.4 * len(text) / mean))
    return total


def test_search_is_bm25_with_lucenes_settings(shop: Any) -> None:
    found = shop.index.search("Quick Drying SHIRTS for boots")
    scores = reference_bm25(shop.products, ["quick", "dri", "shirt", "boot"])
    expected = np.argsort(-scores.round(4), kind="stable")[:HITS]
    assert np.allclose(scores[list(found)], scores[expected], atol=1e-3)
    assert len(found) == HITS
    assert found == tuple(dict.fromkeys(found))


def test_search_stems_words_and_breaks_ties_by_the_catalogues_order(shop: Any) -> None:
    assert shop.index.search("shirts") == shop.index.search("shirt") == shop.index.search("Shirt!")
    twin = Product("X", "T", "c", "q", "p", (), (), ("soft",), "warm rug", (1.0,), 1.0, ())
    index = Index([twin, replace(twin, title="T T")] * 40)
    assert index.search("rugs") == (*range(0, 80, 2), *range(1, 20, 2))  # the longer ones score a little less
    assert index.search("hat") == ()


@settings(max_examples=100)
@given(st.text(max_size=200))
def test_any_text_can_be_searched(words: str) -> None:
    found = open_shop(1000, 233).index.search(words)
    assert len(found) <= HITS
    assert len(set(found)) == len(found)
