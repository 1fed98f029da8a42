"""TextCraft's expert: its plans win from any state and are shortest; its thoughts."""

import re
from collections import deque
from typing import Any

import pytest

from selfimprove.core.seeds import rng
from selfimprove.envs.textcraft.book import embedded_recipes
from selfimprove.envs.textcraft.env import TextCraft, TextCraftSnapshot
from selfimprove.envs.textcraft.expert import plan
from selfimprove.envs.textcraft.recipes import RecipeBook
from tests.envs.textcraft.textcraft_books import BOOK, SMALL, at, shapeless


def played(env: TextCraft) -> int:
    """Play the expert's moves from here and return their number; each must be valid, and replanning must agree."""
    moves = env.expert()
    for i, move in enumerate(moves):
        assert len(env.expert()) == len(moves) - i
        assert move.action in env.valid_actions()
        assert env.step(move.action).info["valid"]
    assert env.snapshot().done
    return len(moves)


def test_the_expert_solves_every_embedded_goal_in_at_most_eight_actions() -> None:
    env = TextCraft(BOOK)
    lengths: dict[int, list[int]] = {1: [], 2: [], 3: [], 4: []}
    for task, (_, depth) in enumerate(BOOK.goals):
        env.reset(task)
        lengths[depth].append(played(env))
    assert min(len(some) for some in lengths.values()) > 90
    assert max(max(some) for some in lengths.values()) == 8
    means = [sum(some) / len(some) for some in lengths.values()]
    assert means == sorted(means)
    assert means[0] < 3 < 5 < means[2]


def test_the_expert_finishes_after_random_actions() -> None:
    random = rng("stray")
    env = TextCraft(BOOK)
    for task in range(0, len(BOOK.goals), 5):
        env.reset(task)
        for _ in range(random.randint(1, 12)):
            if not env.snapshot().done:
                env.step(random.choice(env.valid_actions()))
        if not env.snapshot().done:
            played(env)


def shortest(goal: str, inventory: dict[str, int]) -> int:
    """Breadth-first search with the environment's own steps; one ``get`` fetches at most four of a kind."""
    env = at(goal, **inventory)
    seen, queue = {env.snapshot()}, deque([(env.snapshot(), 0)])
    while queue:
        moment, length = queue.popleft()
        env.restore(moment)
        gets = [f"get {count} {raw}" for raw in ("log", "branch", "hemp", "silk") for count in range(1, 5)]
        crafts = [action for action in env.valid_actions() if action.startswith("craft")]
        for action in gets + crafts:
            env.restore(moment)
            if env.step(action).done:
                return length + 1
            _, items, _ = env.snapshot()
            after = TextCraftSnapshot(moment.task, tuple(sorted(items)), False)
            if after not in seen and sum(count for _, count in items) <= 9:
                seen.add(after)
                queue.append((after, length + 1))
    raise AssertionError("no way")


@pytest.mark.parametrize(
    ("goal", "held"),
    [
        ("plank", {}),
        ("stick", {}),
        ("stick", {"plank": 2}),
        ("stick", {"plank": 1}),
        ("bow", {}),
        ("bow", {"stick": 1}),
        ("bow", {"stick": 2, "hemp": 2}),
        ("bow", {"plank": 2, "silk_cord": 1}),
        ("rack", {"bow": 1, "stick": 2, "plank": 1}),
        ("rack", {"bow": 2, "log": 1}),
    ],
)
def test_no_plan_is_shorter_than_the_experts(goal: str, held: Any) -> None:
    assert len(at(goal, **held).expert()) == shortest(goal, held)


def test_the_expert_chooses_the_cheaper_recipe_and_the_right_amounts() -> None:
    actions = [move.action for move in at("rack").expert()]
    assert actions == [
        "get 2 log",  # three planks for the sticks and for the rack itself
        "craft 2 plank using 1 log",
        "craft 2 plank using 1 log",
        "craft 4 stick using 2 plank",
        "get 1 silk",
        "craft 3 silk cord using 1 silk",
        "craft 1 bow using 2 stick, 1 silk cord",
        "craft 1 bow using 2 stick, 1 silk cord",
        "craft 1 rack using 2 bow, 1 plank",
    ]


def test_thoughts_are_short_first_person_varied_and_deterministic() -> None:
    env, again = TextCraft(BOOK), TextCraft(RecipeBook(embedded_recipes(), "again"))
    thoughts = []
    for task in range(0, len(BOOK.goals), 3):
        env.reset(task)
        again.reset(task)
        assert env.expert() == again.expert()
        thoughts += [move.thought for move in env.expert()]
    assert max(len(thought.split()) for thought in thoughts) <= 13
    assert all(re.search(r"\bI\b", thought) and thought.endswith(".") for thought in thoughts)
    assert len({thought.split(" ")[0] for thought in thoughts}) >= 5


def test_the_plan_for_an_unobtainable_item_is_empty() -> None:
    assert plan(SMALL, "minecraft:gold", ()) == ()


def test_the_expert_does_not_plan_in_circles() -> None:
    """Twist is a twine made of cord, and cord is made of any twine, so the first cord has to be made of yarn."""
    files = {
        "cord": shapeless("cord", 1, "#twine"),
        "twist": shapeless("twist", 1, "cord", group="twine"),
        "yarn": shapeless("yarn", 1, "flax", group="twine"),
    }
    env = TextCraft(RecipeBook(files, "round"))
    lengths = []
    for task in env.task_ids():
        env.reset(task)
        lengths.append(played(env))
    assert lengths == [2, 3, 4]
