"""Recipe books: what is read from recipe files, what is skipped, what is refused, and the real book."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfimprove.core.errors import UserError
from selfimprove.envs.textcraft.book import embedded_recipes
from selfimprove.envs.textcraft.env import TextCraft
from selfimprove.envs.textcraft.files import Ingredient, item_id, item_name, read_recipe
from selfimprove.envs.textcraft.recipes import RecipeBook
from tests.support.real_data import real

BOOK = "textcraft/recipes_1_16_5.json"

LADDER = {
    "type": "minecraft:crafting_shaped",
    "group": "ladder",
    "pattern": ["# #", "#&#", "# #"],
    "key": {"#": {"item": "minecraft:pole"}, "&": [{"tag": "minecraft:cord"}, {"item": "minecraft:rope"}]},
    "result": {"item": "minecraft:long_ladder", "count": 3},
}
DOUGH = {
    "type": "minecraft:crafting_shapeless",
    "ingredients": [{"item": "minecraft:flour"}, {"item": "minecraft:water"}, {"item": "minecraft:flour"}],
    "result": {"item": "minecraft:dough"},
}


def one(output: str, *inputs: str, group: str | None = None) -> dict:
    """A shapeless recipe for one piece; ``#cord`` is a tag."""
    choices = [{"tag": name[1:]} if name.startswith("#") else {"item": name} for name in inputs]
    row = {"type": "minecraft:crafting_shapeless", "ingredients": choices, "result": {"item": output}}
    return row | ({"group": group} if group else {})


def goals(book: RecipeBook) -> dict[str, int]:
    return {item_name(goal): depth for goal, depth in book.goals}


def test_a_shaped_recipe_counts_its_symbols_and_takes_the_first_alternative() -> None:
    recipe: Any = read_recipe(LADDER, "ladder.json")
    assert recipe.inputs == (Ingredient("minecraft:pole", 6), Ingredient("minecraft:cord", 1, is_tag=True))
    assert (recipe.output, recipe.count, recipe.tag) == ("minecraft:long_ladder", 3, "minecraft:ladder")
    assert recipe.command == "craft 3 long ladder using 6 pole, 1 cord"


def test_a_shapeless_recipe_counts_names_in_the_order_of_their_first_mention() -> None:
    dough: Any = read_recipe(DOUGH, "dough.json")
    assert dough.command == "craft 1 dough using 2 flour, 1 water"
    assert read_recipe(DOUGH | {"result": "minecraft:dough"}, "dough.json") == read_recipe(DOUGH, "dough.json")


@pytest.mark.parametrize("kind", ["minecraft:smelting", "minecraft:crafting_special_mapcloning", "stonecutting"])
def test_recipes_of_other_types_are_skipped(kind: str) -> None:
    assert read_recipe({"type": kind}, "some.json") is None
    assert goals(RecipeBook({"a": DOUGH, "b": {"type": kind}}, "book")) == {"dough": 1}


def test_a_name_without_a_namespace_is_in_the_games_namespace() -> None:
    bare = json.loads(json.dumps(LADDER).replace("minecraft:", ""))
    assert read_recipe(bare, "ladder.json") == read_recipe(LADDER, "ladder.json")


def test_recipes_with_a_block_as_their_only_input_are_skipped() -> None:
    book = RecipeBook(
        {"a": one("bar", "bar_block"), "b": one("plate", "bar"), "c": one("fort", "bar_block", "bar")}, "book"
    )
    assert goals(book) == {"fort": 1, "plate": 1}
    assert book.is_raw("minecraft:bar")  # known, but no recipe makes it


def test_a_tag_that_no_recipe_produces_becomes_a_raw_item() -> None:
    book = RecipeBook({"tea": one("tea", "#herb", "water")}, "book")
    assert book.is_raw("minecraft:herb")
    env = TextCraft(book)
    env.reset(0)
    assert env.expert()[0].action == "get 1 herb"
    assert env.step("get 1 herb").observation == "Got 1 herb"


def test_a_tag_of_crafted_items_has_the_depth_of_the_nearest_of_them() -> None:
    book = RecipeBook(
        {
            "net": one("net", "#cord"),
            "hemp_cord": one("hemp_cord", "hemp_fibre", group="cord"),
            "hemp_fibre": one("hemp_fibre", "hemp"),
            "flax_cord": one("flax_cord", "flax", group="cord"),
        },
        "book",
    )
    assert goals(book) == {"flax cord": 1, "hemp fibre": 1, "hemp cord": 2, "net": 2}
    assert not book.is_raw("minecraft:cord")


def test_a_goal_may_need_a_tag_that_its_item_has_only_in_a_skipped_recipe() -> None:
    files = {
        "1": one("cord", "hemp"),
        "2": one("net", "cord"),
        "3": one("cord", "net", group="tie"),  # skipped, because a net is made of cord; but cord has the tag
        "4": one("bow", "stick", "#tie"),
    }
    book = RecipeBook(files, "book")
    assert goals(book) == {"cord": 1, "net": 2, "bow": 2}
    shown = [recipe.command for recipe in book.reachable("minecraft:bow")]
    assert shown == ["craft 1 bow using 1 stick, 1 tie", "craft 1 cord using 1 hemp"]
    env = TextCraft(book)
    env.reset([name for name, _ in book.goals].index("minecraft:bow"))
    assert [env.step(move.action).reward for move in env.expert()] == [0, 0, 0, 1]


def test_recipes_may_form_a_chain_of_any_length() -> None:
    book = RecipeBook({str(i): one(f"item{i + 1}", f"item{i}") for i in range(1500)}, "book")
    assert len(book.reachable("minecraft:item1500")) == 1500
    assert "Goal: craft item1500." in TextCraft(book).reset(1499)


def test_a_group_may_have_the_name_of_its_item() -> None:
    book = RecipeBook({"a": one("ladder", "pole", group="ladder")}, "book")
    assert book.tags == set()
    assert book.match("minecraft:ladder", [("minecraft:pole", 1)]) is not None


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_a_recipe_whose_input_already_depends_on_its_output_is_skipped(length: int) -> None:
    ring = {str(i): one(f"i{i}", f"i{i + 1}") for i in range(length)} | {"last": one(f"i{length}", "i0")}
    book = RecipeBook({**ring, "z": one("z", "i0")}, "book")
    assert goals(book) == {f"i{i}": length - i for i in range(length)} | {"z": length + 1}
    assert book.is_raw(f"minecraft:i{length}")


def test_an_item_that_depends_on_itself_through_a_tag_is_not_a_goal() -> None:
    book = RecipeBook(
        {"a": one("cord", "#twine"), "b": one("twist", "cord", group="twine"), "c": one("cup", "clay")}, "b"
    )
    assert goals(book) == {"cup": 1}
    env = TextCraft(book)
    env.reset(0)
    assert env.step("get 1 twist").observation == "Could not find twist"


def test_an_item_that_needs_an_item_with_the_name_of_a_tag_is_not_a_goal() -> None:
    files = {"a": one("x", "cord"), "b": one("rope", "rope", group="cord"), "c": one("cup", "clay")}
    book = RecipeBook(files, "book")
    assert goals(book) == {"cup": 1}
    assert TextCraft(book).step("get 1 cord").observation == "Could not find cord"


def test_an_item_that_needs_a_tag_that_no_item_bears_any_longer_is_not_a_goal() -> None:
    files = {"a": one("cord", "hemp", group="tie"), "b": one("cord", "flax", group="rope"), "c": one("bow", "#tie")}
    book = RecipeBook({**files, "d": one("net", "#rope")}, "book")
    assert goals(book) == {"cord": 1, "net": 2}  # a cord bears the tag of its last recipe
    env = TextCraft(book)
    for task in env.task_ids():
        env.reset(task)
        assert [env.step(move.action).reward for move in env.expert()][-1] == 1


@pytest.mark.parametrize(
    "files",
    [
        {"a.json": one("a", "a")},
        {"a.json": one("a", "#t"), "b.json": one("b", "a", group="t")},
        {"a.json": {"type": "minecraft:smelting"}},
        {"a.json": one("bar", "bar_block")},
        {},
    ],
)
def test_a_book_with_nothing_to_craft_is_refused(files: Any) -> None:
    with pytest.raises(UserError, match=r"^my book: nothing can be crafted, .*; provide recipes .*\.$"):
        RecipeBook(files, "my book")


def without(row: dict, key: str) -> dict:
    return {name: value for name, value in row.items() if name != key}


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (without(DOUGH, "type"), "the key 'type' is missing"),
        (without(DOUGH, "ingredients"), "the key 'ingredients' is missing"),
        (without(DOUGH, "result"), "the key 'result' is missing"),
        (without(LADDER, "pattern"), "the key 'pattern' is missing"),
        (without(LADDER, "key"), "the key 'key' is missing"),
        (DOUGH | {"result": {"count": 2}}, "key 'result': the key 'item' is missing"),
        (DOUGH | {"result": {"item": "dough", "count": -1}}, "key 'result.count': must be a whole number above 0"),
        (DOUGH | {"result": {"item": "dough", "count": "2"}}, "key 'result.count': must be a whole number above 0"),
        (DOUGH | {"ingredients": [{"thing": "flour"}]}, "key 'ingredients': unknown item {'thing': 'flour'}"),
        (DOUGH | {"ingredients": ["flour"]}, "key 'ingredients': unknown item 'flour'"),
        (DOUGH | {"ingredients": [[]]}, "key 'ingredients': unknown item []"),
        (DOUGH | {"ingredients": []}, "key 'ingredients': a recipe needs an input"),
        (DOUGH | {"ingredients": [{"item": "other:flour"}]}, "key 'ingredients': invalid id 'other:flour'"),
        (DOUGH | {"ingredients": [{"item": "rye flour, 1"}]}, "key 'ingredients': invalid id 'rye flour, 1'"),
        (DOUGH | {"result": {"item": 7}}, "key 'result': invalid id 7"),
        (DOUGH | {"group": 7}, "key 'group': invalid id 7"),
        (LADDER | {"pattern": ["#&?"]}, "key 'pattern': undefined symbol '?'; define it in 'key'"),
        (LADDER | {"pattern": ["###"]}, "key 'key': '&' does not occur in the pattern"),
        (LADDER | {"pattern": [3]}, "key 'pattern': an element has the wrong type"),
        (LADDER | {"pattern": "#&#"}, "key 'pattern': has the wrong type"),
        (LADDER | {"key": []}, "key 'key': has the wrong type"),
        ([DOUGH], "a recipe must be a JSON object"),
        (None, "a recipe must be a JSON object"),
    ],
)
def test_a_bad_recipe_is_refused_with_its_file_and_key(tmp_path: Path, row: Any, says: str) -> None:
    path = tmp_path / "book.json"
    path.write_text(json.dumps({"good.json": DOUGH, "bad.json": row}))
    with pytest.raises(UserError) as error:
        RecipeBook.load(path)
    assert str(error.value).startswith(f"{path}, bad.json")
    assert says in str(error.value)
    assert str(error.value).endswith(".")
    assert len(str(error.value)) < 260 + len(str(path))


@pytest.mark.parametrize("content", [b"", b"{", b'{"a": 1} x', b"\xff\xfe\x00", b"[" * 100_000])
def test_invalid_json_is_refused(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "recipes" / "bad.json"
    path.parent.mkdir()
    path.write_bytes(content)
    (path.parent / "good.json").write_text(json.dumps(DOUGH))
    for place in (path, path.parent):
        with pytest.raises(UserError, match=r"bad\.json is not JSON"):
            RecipeBook.load(place)


def test_a_missing_or_empty_book_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"absent\.json does not exist"):
        RecipeBook.load(tmp_path / "absent.json")
    with pytest.raises(UserError, match=r"the folder contains no \.json recipe files"):
        RecipeBook.load(tmp_path)
    for merged in ("[]", "{}", "3"):
        (tmp_path / "book.json").write_text(merged)
        with pytest.raises(UserError, match=r"book.json: must be a non-empty JSON object \{file name: recipe\}"):
            RecipeBook.load(tmp_path / "book.json")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["item", "minecraft:a", "#", "##", ""]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["item", "tag", "count", "#", "&", "x"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=200)
@given(st.sampled_from([LADDER, DOUGH]), st.dictionaries(st.sampled_from([*LADDER, "ingredients"]), JSON, max_size=2))
def test_any_recipe_is_read_or_refused(row: Any, changes: Any) -> None:
    try:
        recipe = read_recipe(row | changes, "some.json")
    except UserError:
        with pytest.raises(UserError, match=r"^some\.json[:,] .*\.$"):
            read_recipe(row | changes, "some.json")
    else:
        assert recipe is None or all(slot.count > 0 for slot in recipe.inputs)


def test_a_folder_and_a_single_file_give_the_same_book_in_any_order(tmp_path: Path) -> None:
    files = embedded_recipes()
    folder = tmp_path / "recipes"
    folder.mkdir()
    for name in reversed(files):
        (folder / name).write_text(json.dumps(files[name]))
    merged = tmp_path / "book.json"
    merged.write_text(json.dumps(dict(reversed(files.items()))))
    task = len(files) // 2
    openings = {TextCraft(RecipeBook.load(place)).reset(task) for place in (None, folder, merged)}
    assert len(openings) == 1
    assert RecipeBook.load(folder).goals == RecipeBook.load(merged).goals == RecipeBook.load().goals


def test_goals_are_sorted_by_depth_and_then_by_file_name() -> None:
    book = RecipeBook.load()
    assert book.goals == sorted(book.goals, key=lambda goal: goal[1])
    made = [read_recipe(row, name).output for name, row in sorted(embedded_recipes().items())]  # type: ignore[union-attr]
    for depth in (1, 2, 3, 4):
        here = [goal for goal, own in book.goals if own == depth]
        assert here == sorted(here, key=made.index)


@given(st.text(st.sampled_from("abc_ "), min_size=1))
def test_names_and_ids_are_two_spellings_of_one_thing(name: str) -> None:
    assert item_name(item_id(name)) == name.replace("_", " ")


def test_the_real_recipes_give_544_goals_in_the_published_order_and_all_are_solved() -> None:
    book = RecipeBook.load(real(BOOK))
    listed = json.loads(real("textcraft/goals_sorted_order.json").read_text())
    assert [(row["goal"], row["depth"]) for row in listed] == book.goals
    assert Counter(depth for _, depth in book.goals) == {1: 125, 2: 291, 3: 117, 4: 11}
    env = TextCraft(book)
    for task in env.task_ids():
        env.reset(task)
        steps = [env.step(move.action) for move in env.expert()]
        assert all(step.info["valid"] for step in steps)
        assert [step.reward for step in steps] == [0] * (len(steps) - 1) + [1]


def test_the_first_observation_of_a_task_of_the_real_book() -> None:
    """Drawn as in the original, but with its sets sorted."""
    opening = TextCraft(RecipeBook.load(real(BOOK))).reset(5)
    assert opening == (
        "Crafting commands:\ncraft 1 black dye using 1 wither rose\n"
        "craft 1 writable book using 1 book, 1 ink sac, 1 feather\ncraft 1 black dye using 1 ink sac\n\n"
        "Goal: craft black dye."
    )
