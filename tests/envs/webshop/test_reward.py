"""The score of a purchase, compared with the formula of docs/agent-r.md, A38, and with the available real goals."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfimprove.envs.webshop.catalogue import Product
from selfimprove.envs.webshop.goals import Goal, instruction
from selfimprove.envs.webshop.reward import (
    COLORS,
    has_attribute,
    lexicon_nouns,
    reduce_color,
    score,
    similar,
    title_overlap,
    type_factor,
)
from tests.support.real_data import real

SHIRT = Product(
    id="B1",
    title="Norvi Soft Cotton Shirt",
    category="fashion",
    query="shirts",
    product_category="Clothing › Men › Shirts",
    attributes=("soft cotton", "machine wash"),
    goal_attributes=("soft cotton", "machine wash"),
    bullet_points=("Soft cotton", "Comes in a GIFT box"),
    description="A shirt with long sleeves.",
    pricing=(20.0,),
    price=20.0,
    options=(("color", ("navy blue", "red")), ("size", ("small", "large"))),
)
GOAL = Goal(
    id="B1",
    category="fashion",
    query="shirts",
    title=SHIRT.title,
    product_category=SHIRT.product_category,
    attributes=("soft cotton", "machine wash"),
    options=(("color", "navy blue"), ("size", "small")),
    price_upper=30.0,
    instruction="",
)
CHOSEN = {"color": "navy blue", "size": "small"}


@pytest.mark.parametrize(
    ("product", "chosen", "expected"),
    [
        (SHIRT, CHOSEN, 5 / 5),
        (SHIRT, CHOSEN | {"size": "large"}, 4 / 5),
        (SHIRT, {"size": "small"}, 4 / 5),
        (SHIRT, {}, 3 / 5),
        (SHIRT, CHOSEN | {"color": "sky blue"}, 5 / 5),  # the original reduces both to blue
        (replace(SHIRT, price=30.0), CHOSEN, 5 / 5),
        (replace(SHIRT, price=30.01), CHOSEN, 4 / 5),
        (replace(SHIRT, attributes=("soft cotton",)), CHOSEN, 4 / 5),
        (replace(SHIRT, attributes=("cotton soft", "machine washe")), CHOSEN, 5 / 5),  # order and near-spellings
        (replace(SHIRT, query="x", product_category="y"), CHOSEN, 5 / 5),  # the titles agree
        (replace(SHIRT, query="x", product_category="y", title="Q W Shirt"), CHOSEN, 5 / 5),  # 1 of 3 nouns
        (replace(SHIRT, title="Zebra Tent"), CHOSEN, 0.0),  # no noun in common, whatever the category
    ],
)
def test_reward_is_type_times_matched_parts(product: Any, chosen: Any, expected: Any) -> None:
    assert score(GOAL, product, chosen).reward == pytest.approx(expected)


@pytest.mark.parametrize(
    ("query", "category", "overlap", "expected"),
    [
        (True, True, 1.0, 1.0), (False, False, 0.21, 1.0), (False, False, 0.2, 0.5), (True, False, 0.1, 1.0),
        (False, True, 0.1, 1.0), (False, False, 0.1, 0.5), (True, True, 0.09, 0.1), (False, False, 0.09, 0.1),
        (True, True, 0.0, 0.0),
    ],
)  # fmt: skip
def test_the_type_factor_depends_on_query_category_and_title_overlap(
    query: bool, category: bool, overlap: float, expected: float
) -> None:
    assert type_factor(query, category, overlap) == expected


def test_two_shared_categories_give_the_full_type_factor() -> None:
    far = replace(SHIRT, query="x", title="Norvi a b c d e f g h i")  # one noun in many
    goal = replace(GOAL, title="Norvi lamp desk chair bed rug tent")
    assert score(goal, far, CHOSEN).r_type == 1.0  # three categories shared
    assert score(goal, replace(far, product_category="Clothing › Women › Hats"), CHOSEN).r_type == 0.5
    assert score(goal, replace(far, product_category=" Shirts›Clothing"), CHOSEN).r_type == 1.0


def test_title_overlap_is_a_share_of_the_goals_nouns() -> None:
    assert title_overlap("a red shirt shirt", "shirt", str.split) == 1 / 4  # repetitions count in the denominator only
    assert title_overlap("", "shirt", str.split) == 0.2
    assert lexicon_nouns("Norvi Soft Cotton Shirt, 2 Pack for the Office (Long)") == [
        "norvi", "cotton", "shirt", "pack", "office",
    ]  # fmt: skip
    tagged = score(GOAL, SHIRT, CHOSEN, nouns=lambda title: [])
    assert (tagged.title_score, tagged.r_type) == (0.2, 1.0)  # any tagger can be used instead


def test_an_attribute_may_occur_in_any_text_of_the_product() -> None:
    for wanted, found in {
        "gift box": True,
        "long sleeves": True,
        "norvi": True,
        "silk": False,
        "machine": True,
    }.items():
        assert has_attribute(SHIRT, wanted) is found, wanted


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [  # thefuzz 0.19: token_set_ratio(a, b) > 85
        ("pack of 3", "pack of 6", True), ("3 pack", "6 pack", False), ("large", "('size', 'x-large')", True),
        ("SLIM-fit", "fit slim!", True), ("gluten free", "dairy free", False), ("", "", False), ("é", "e", False),
        ("café", "caf", True), ("blue", "('color', 'light blue')", True), ("8", "('size', '8')", True),
        ("red_wine", "wine", False), ("quick drying", "quick dry", True),
        ("wireless charger", "wireless charging", False),  # 84.8, which thefuzz rounds to 85
    ],
)  # fmt: skip
def test_fuzzy_comparison_agrees_with_thefuzz(a: str, b: str, expected: bool) -> None:
    assert similar(a, b) is expected


def test_colours_are_reduced_to_the_first_known_one() -> None:
    assert reduce_color("dark navy blue") == "blue"  # in the list's order, not the text's
    assert reduce_color("light pink") == "light"
    assert reduce_color("xxl") == "xxl"
    assert list(COLORS) == sorted(COLORS)
    assert len(COLORS) == 102
    human = replace(GOAL, options=("dark navy", "small"))  # plain values are reduced on both sides
    assert score(human, SHIRT, {"color": "dark grape", "size": "small"}).options == 2  # both are reduced to "dark"
    assert score(human, SHIRT, {"color": "navy", "size": "small"}).options == 1
    pair = replace(GOAL, options=(("color", "dark navy"), ("fit", "standard")))  # pairs: only whole names are reduced
    assert score(pair, SHIRT, {"color": "navy"}).options == 1
    assert score(pair, SHIRT, {"fit": "standard"}).options == 0  # "tan" in "standard", as in the original


@given(
    st.dictionaries(st.sampled_from(["color", "size", "x"]), st.text(max_size=12), max_size=3),
    st.floats(0, 100),
    st.text(max_size=20),
)
def test_any_purchase_scores_between_0_and_1(chosen: Any, price: float, title: str) -> None:
    result = score(GOAL, replace(SHIRT, price=price, title=title), chosen)
    assert 0.0 <= result.reward <= 1.0


# --- real goals (WebShop, MIT) ---------------------------------------------------------------------------------------


def _bought(goal: Goal, attributes: tuple[str, ...]) -> Product:
    """A product with the goal's own type, title and price, and the given attributes."""
    return replace(
        SHIRT, title=goal.title, query=goal.query, product_category=goal.product_category, attributes=attributes,
        bullet_points=("none",), description="none", price=goal.price_upper,
    )  # fmt: skip


def test_real_human_goals_are_scored_by_the_formula() -> None:
    rows = json.loads(real("webshop/sample_goals.json").read_text(encoding="utf-8"))
    assert len(rows) == 9
    for row in rows:
        goal = Goal(
            id=row["asin"], category=row["category"], query=row["query"], title=row["name"],
            product_category=row["product_category"], attributes=tuple(row["attributes"]),
            options=tuple(row["goal_options"]), price_upper=row["price_upper"], instruction=row["instruction_text"],
        )  # fmt: skip
        wish = goal.instruction.split(", and price lower than")[0]
        assert instruction(wish, (), goal.price_upper) == goal.instruction
        product = _bought(goal, goal.attributes)
        chosen = {str(place): value for place, value in enumerate(row["goal_options"])}
        parts = len(goal.attributes) + len(chosen) + 1
        assert score(goal, product, chosen).reward == 1.0
        assert score(goal, product, {}).reward == pytest.approx((parts - len(chosen)) / parts)
        assert score(goal, replace(product, price=goal.price_upper + 1), chosen).reward == pytest.approx(1 - 1 / parts)
        for other in rows:  # products of a different kind
            if other["product_category"].split(" › ")[0] != row["product_category"].split(" › ")[0]:
                wrong = _bought(replace(goal, title=other["name"], query="x", product_category="y"), goal.attributes)
                assert score(goal, wrong, chosen).reward <= 0.5


def test_real_products_have_the_attributes_that_their_instructions_ask_for() -> None:
    items = json.loads(real("webshop/items_ins_v2_1000.json").read_text(encoding="utf-8"))
    asked = [item for item in items.values() if item.get("instruction")]
    assert len(asked) == 415
    for item in asked:
        product = replace(SHIRT, attributes=tuple(item["attributes"]))
        assert all(has_attribute(product, wanted) for wanted in item["instruction_attributes"])
        assert all(wanted in item["instruction"] for wanted in item["instruction_attributes"])
