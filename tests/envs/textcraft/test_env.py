"""TextCraft: the original's observations, replies and rewards, for any text; snapshots; the embedded book."""

import json
import re
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import selfimprove.envs.textcraft.env as module
from selfimprove.core.seeds import rng
from selfimprove.envs.registry import text_env
from selfimprove.envs.textcraft.book import FAMILIES, embedded_recipes
from selfimprove.envs.textcraft.env import TextCraft, TextCraftSnapshot
from selfimprove.envs.textcraft.files import item_name
from selfimprove.envs.textcraft.recipes import RecipeBook
from tests.envs.textcraft.textcraft_books import BOOK, SMALL, TASK, at


def replies(env: TextCraft, *actions: str) -> list[str]:
    return [env.step(action).observation for action in actions]


def test_the_example_episode_in_the_module_docstring_is_accurate() -> None:
    text = re.sub(r"(?m)^    ", "", module.__doc__.split("::\n\n", 1)[1].split("\n\nThe last craft", 1)[0])
    number = int(re.search(r"goal (\d+)", module.__doc__)[1])  # type: ignore[index]
    opening, played = text.split("\n\nThought: ", 1)
    env = TextCraft(BOOK)
    assert env.reset(number) == opening
    turns = re.findall(r"Thought: (.*)\nAction: (.*)\n(.*)", "Thought: " + played)
    assert [tuple(move) for move in env.expert()] == [turn[:2] for turn in turns]
    steps = [env.step(action) for _, action, _ in turns]
    assert [step.observation for step in steps] == [turn[2] for turn in turns]
    assert [step.reward for step in steps] == [0] * (len(steps) - 1) + [1]


def test_observation_lists_reachable_recipes_and_a_distractor_then_the_goal() -> None:
    """The order is that of the original's generator with seed 42 over sorted lists."""
    assert TextCraft(SMALL).reset(TASK["bow"]).split("\n") == [
        "Crafting commands:",
        "craft 3 silk cord using 1 silk",
        "craft 2 plank using 1 log",
        "craft 1 stick using 1 branch",
        "craft 1 rack using 2 bow, 1 plank",  # not needed; it also uses planks
        "craft 4 stick using 2 plank",
        "craft 1 hemp cord using 2 hemp",
        "craft 1 bow using 2 stick, 1 cord",
        "",
        "Goal: craft bow.",
    ]


def test_there_are_at_most_ten_distractors_and_no_repeated_lines() -> None:
    env = TextCraft(BOOK)
    for task in range(0, len(BOOK.goals), 7):
        goal = BOOK.goals[task][0]
        lines = env.reset(task).split("\n")[1:-2]
        needed = {recipe.command for recipe in BOOK.reachable(goal)}
        assert len(set(lines)) == len(lines)
        assert needed <= set(lines)
        assert len(lines) - len(needed) <= 10


def test_the_order_of_commands_depends_only_on_the_seed() -> None:
    task = len(BOOK.goals) - 1
    first = TextCraft(BOOK).reset(task)
    again = TextCraft(RecipeBook(dict(reversed(embedded_recipes().items())), "turned round"))
    again.reset(3)
    assert again.reset(task) == first
    assert TextCraft(BOOK, seed=43).reset(task) != first


def test_task_is_the_index_modulo_the_number_of_goals() -> None:
    env = TextCraft(SMALL)
    assert list(env.task_ids()) == list(range(len(SMALL.goals)))
    assert env.reset(2 + 3 * len(SMALL.goals)) == env.reset(2)
    assert env.snapshot().task == 2


@pytest.mark.parametrize(
    ("held", "action", "reply"),
    [
        ({}, "get 3 log", "Got 3 log"),
        ({}, "get 03 log", "Got 3 log"),
        ({}, "get 0 log", "Got 0 log"),
        ({}, "get 1 log\nget 2 silk", "Got 1 log"),
        ({}, "get 1 log, 2 silk", "Could not find log, 2 silk"),
        ({}, "get 1 plank", "Could not find plank"),  # craftable
        ({}, "get 1 cord", "Could not find cord"),  # a tag
        ({}, "get 1 gold", "Could not find gold"),  # unknown
        ({}, "get 1 log ", "Could not find log "),
        ({}, "get log", "Could not execute get log"),
        ({}, "Get 1 log", "Could not execute Get 1 log"),
        ({}, " get 1 log", "Could not execute  get 1 log"),
        ({}, "", "Could not execute "),
        ({}, "wait", "Could not execute wait"),
        ({}, "craft plank", "Could not execute craft plank"),
        ({}, "inventory", "Inventory: You are not carrying anything."),
        ({"log": 2, "hemp_cord": 1}, "inventory", "Inventory: [log] (2) [hemp cord] (1) "),
        ({"log": 2}, "inventory, please", "Inventory: [log] (2) "),
        ({"log": 1}, "craft 2 plank using 1 log", "Crafted 2 minecraft:plank"),
        ({"log": 1}, "craft plank using 1 log", "Crafted 2 minecraft:plank"),
        ({"log": 1}, "craft 99 plank using 1 log", "Crafted 2 minecraft:plank"),
        ({"plank": 2}, "craft 1 stick using 2 plank", "Crafted 4 minecraft:stick"),  # the second recipe
        ({}, "craft 2 plank using 1 log", "Could not find enough items to craft minecraft:plank"),
        ({"stick": 2}, "craft 1 bow using 2 stick, 1 cord", "Could not find enough items to craft minecraft:bow"),
        ({}, "craft 2 plank using 0 log", "Could not find enough items to craft minecraft:plank"),
        ({"log": 1}, "craft 1 cord using 2 log", "Could not find enough items to craft None"),
        ({"log": 1}, "craft 2 plank using log", "Wrong item format: log"),
        ({"log": 1}, "craft 2 plank using 1 log,", "Wrong item format: "),
        ({"log": 1}, "craft 2 plank using 1 log , one silk", "Wrong item format: one silk"),
        (
            {"log": 1, "silk": 1},
            "craft 2 plank using 1 log, 1 silk",
            "Could not find a valid recipe for ItemTagWithCount(item_tag=ItemTag(tag=None, item_id='minecraft:plank'), "
            "count=2)",
        ),
        (
            {"log": 2},
            "craft 2 plank using 2 log",
            "Could not find a valid recipe for ItemTagWithCount(item_tag=ItemTag(tag=None, item_id='minecraft:plank'), "
            "count=2)",
        ),
        (
            {"log": 2},
            "craft cord using 2 log",
            "Could not find a valid recipe for ItemTagWithCount(item_tag=ItemTag(tag='minecraft:cord', item_id=None), "
            "count=1)",
        ),
        (
            {"stick": 2, "log": 1},
            "craft 1 bow using 2 stick, 1 log",
            "Could not find a valid recipe for ItemTagWithCount(item_tag=ItemTag(tag=None, item_id='minecraft:bow'), "
            "count=1)",
        ),
    ],
)
def test_replies_match_the_original_word_for_word(held: Any, action: str, reply: str) -> None:
    env = at("rack", **held)
    before = env.snapshot()
    step = env.step(action)
    assert step.observation == reply
    assert step.info["valid"] == (not reply.startswith(("Could not", "Wrong")))
    assert (step.reward, step.done, step.info["disaster"]) == (0, False, False)
    if not step.info["valid"]:
        assert env.snapshot() == before


def test_the_inventory_keeps_its_order_and_drops_items_that_are_used_up() -> None:
    env = at("rack")
    assert replies(env, "get 1 silk", "get 2 log", "get 1 silk", "craft 2 plank using 1 log", "inventory")[-1] == (
        "Inventory: [silk] (2) [log] (1) [plank] (2) "
    )
    assert replies(env, "craft 2 plank using 1 log", "inventory", "get 0 log", "inventory") == [
        "Crafted 2 minecraft:plank",
        "Inventory: [silk] (2) [plank] (4) ",
        "Got 0 log",
        "Inventory: [silk] (2) [plank] (4) [log] (0) ",  # as in the original
    ]


@pytest.mark.parametrize("wanted", ["2 plank", "plank", "99 plank"])
def test_a_craft_makes_the_recipe_s_number_whatever_number_is_requested(wanted: str) -> None:
    env = at("rack", log=1)
    made = replies(env, f"craft {wanted} using 1 log", "inventory")
    assert made == ["Crafted 2 minecraft:plank", "Inventory: [plank] (2) "]


@pytest.mark.parametrize("cord", ["hemp cord", "silk cord"])
def test_a_tag_accepts_any_item_that_has_it(cord: str) -> None:
    env = at("bow", stick=2, hemp_cord=1, silk_cord=1)
    step = env.step(f"craft 1 bow using 1 {cord}, 2 stick")  # in any order
    assert (step.observation, step.reward, step.done) == ("Crafted 1 minecraft:bow", 1, True)
    assert step.info["raw_score"] == 1


def test_only_the_goal_is_rewarded_and_the_reward_persists() -> None:
    env = at("bow", stick=4, hemp_cord=2, log=1)
    assert env.step("craft 2 plank using 1 log").reward == 0
    assert env.step("craft 1 bow using 2 stick, 1 hemp cord").reward == 1
    after = env.step("inventory")
    assert (after.reward, after.done) == (1, True)
    assert (env.expert(), env.valid_actions()) == ([], [])


def test_an_item_named_twice_is_required_twice() -> None:
    book = RecipeBook(
        {
            "knot": {
                "type": "minecraft:crafting_shaped",
                "pattern": ["AB"],
                "key": {"A": {"item": "rope"}, "B": {"item": "rope"}},
                "result": "knot",
            }
        },
        "book",
    )
    env = TextCraft(book)
    assert "craft 1 knot using 1 rope, 1 rope" in env.reset(0)
    env.step("get 1 rope")
    action = "craft 1 knot using 1 rope, 1 rope"
    assert action not in env.valid_actions()
    assert env.step(action).observation == "Could not find enough items to craft minecraft:knot"  # the original crashes
    assert env.snapshot().inventory == (("minecraft:rope", 1),)
    env.step("get 1 rope")
    assert env.step(action).done


def test_a_snapshot_is_a_hashable_value_that_any_copy_can_restore() -> None:
    env, other = TextCraft(BOOK), TextCraft(BOOK)
    env.reset(400)
    moves = env.expert()
    for move in moves[:2]:
        env.step(move.action)
    moment = env.snapshot()
    rest = [env.step(move.action) for move in moves[2:]]
    assert hash(moment) == hash(TextCraftSnapshot(*moment))
    other.reset(5)
    other.restore(moment)
    assert other.snapshot() == moment
    assert [other.step(move.action) for move in moves[2:]] == rest
    env.restore(moment)
    assert env.expert() == moves[2:]


def test_copies_share_nothing_but_the_book() -> None:
    envs = [TextCraft(BOOK) for _ in range(300)]
    for task, env in enumerate(envs):
        env.reset(task)
    plans = [env.expert() for env in envs]
    for turn in range(max(map(len, plans))):  # all episodes interleaved
        for env, moves in zip(envs, plans, strict=True):
            if turn < len(moves):
                env.step(moves[turn].action)
    assert all(env.snapshot().done for env in envs)
    assert [env.snapshot().task for env in envs] == list(range(300))


LETTERS = st.text(st.characters(codec="utf-8"), max_size=30)
NAMES = (
    st.sampled_from(["log", "plank", "stick", "cord", "hemp cord", "silk_cord", "bow", "rack", "gold", ""]) | LETTERS
)
NUMBERS = st.sampled_from(["", "0", "1", "2", "4", "-1", "1.5", "9" * 5000, "²", "٣"])
COUNTED = st.builds("{} {}".format, NUMBERS, NAMES)
ACTIONS = st.one_of(
    LETTERS,
    st.sampled_from(["inventory", "x" * 10_000, "get 1 " + "log " * 3000, "\x00\x1b[2J", "craft \x07 using \x00"]),
    st.builds("get {}".format, COUNTED),
    st.builds("craft {} using {}".format, COUNTED | NAMES, st.lists(COUNTED, max_size=4).map(", ".join)),
    st.sampled_from(sorted(recipe.command for recipes in SMALL.recipes.values() for recipe in recipes)),
)


@settings(max_examples=300)
@given(st.integers(0, len(SMALL.goals) - 1), st.lists(ACTIONS | st.tuples(ACTIONS, ACTIONS).map("\n".join), max_size=8))
def test_no_action_text_breaks_the_environment(task: int, actions: Any) -> None:
    env = TextCraft(SMALL)
    env.reset(task)
    scores = [0.0]
    for action in actions:
        before = env.snapshot()
        step = env.step(action)
        after = env.snapshot()
        scores.append(step.reward)
        assert step.done == (step.reward == 1)
        assert step.info["valid"] or after == before
        assert all(count >= 0 and item in SMALL.items for item, count in after.inventory)
        env.restore(before)
        assert env.step(action) == step
        assert env.snapshot() == after
        moves = env.expert()
        assert bool(moves) != step.done
        if moves:
            assert moves[0].action in env.valid_actions()
    assert all(a <= b for a, b in pairwise(scores))


def test_valid_actions_are_sorted_and_all_work() -> None:
    random = rng("walk")
    env = TextCraft(BOOK)
    for task in range(0, len(BOOK.goals), 11):
        env.reset(task)
        for _ in range(10):
            actions = env.valid_actions()
            assert actions == sorted(set(actions))
            assert (actions == []) == env.snapshot().done
            before = env.snapshot()
            for action in actions:
                env.restore(before)
                assert env.step(action).info["valid"]
            env.restore(before)
            env.step(random.choice([*actions, "inventory"]))


def test_the_embedded_book_is_regular_across_materials() -> None:
    """What is learnt about one material holds for the others: the goals of a family differ only in the name."""
    names = Counter(item_name(goal) for goal, _ in BOOK.goals)
    for materials, lines in FAMILIES.items():
        for line in lines.strip().splitlines():
            output = re.match(r"\s*(?:\w+: )?\d+ (.+) <-", line)[1]  # type: ignore[index]
            for material in materials.split() or [""]:
                assert names[output.replace("{}", material)] == 1
    assert len(BOOK.goals) > 600
    assert all(1 <= len(name.split()) <= 3 for name in names)
    inputs = [len(recipe.inputs) for recipes in BOOK.recipes.values() for recipe in recipes]
    assert max(inputs) <= 3
    assert {"minecraft:cord", "minecraft:handle", "minecraft:jam"} == BOOK.tags
    assert "minecraft:herb" in BOOK.items - BOOK.tags  # a tag that no recipe produces
    assert sum(len(recipes) > 1 for recipes in BOOK.recipes.values()) >= 9  # alternatives
    json.dumps(embedded_recipes())


def test_layouts_of_a_task_differ_but_have_the_same_goal() -> None:
    one, other = text_env(name="textcraft", seed=5).layouts(2)
    for task in range(300, 310):
        a, b = one.reset(task), other.reset(task)
        assert a != b
        assert a.rpartition("\n")[2] == b.rpartition("\n")[2]
