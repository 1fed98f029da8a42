"""The text kitchen's planner: it wins from any state with a shortest plan; its thoughts use only what is known."""

import random
import re
from collections import deque

import pytest

from selfimprove.envs.alfworld.kitchen import Kitchen
from selfimprove.envs.alfworld.kitchen_expert import plan
from selfimprove.envs.alfworld.kitchen_games import TRAIN, VALID
from selfimprove.envs.alfworld.kitchen_rules import deeds, do, first_scene, is_won
from selfimprove.envs.alfworld.kitchen_things import KINDS, LAMP
from tests.envs.alfworld.kitchen_rooms import follow, game


def test_planner_wins_every_game_within_max_turns() -> None:
    env, lengths = Kitchen(), set()
    for task in [*TRAIN[::7], *VALID]:
        env.reset(task)
        way = env.expert()
        for move in way:
            assert move.action in env.valid_actions()
            step = env.step(move.action)
            assert step.done == (move is way[-1])
        assert step.reward == 1
        assert env.expert() == env.oracle() == []
        lengths.add(len(way))
    assert max(lengths) <= 11


def test_planner_wins_after_a_random_walk() -> None:
    env, chance = Kitchen(max_turns=60), random.Random(3)
    for task in range(240):
        env.reset(task)
        for _ in range(chance.randrange(25)):
            useful = [a for a in env.valid_actions() if not a.startswith("go to") or chance.random() < 0.2]
            if env.step(chance.choice(useful)).done:
                break
        else:
            for action in env.oracle():
                step = env.step(action)
            assert step.reward == 1


@pytest.mark.parametrize("task", [0, 1, 2, 3, 4, 5])
def test_no_shorter_plan_exists(task: int) -> None:
    """A search over all actions that can matter, in a small room, from the start and with another thing in hand."""
    kind = KINDS[task]
    place = LAMP if kind == "look_in_light" else "countertop"
    played = game(
        kind, "mug", place, mug_2="cabinet 2", mug_1="fridge 1", knife_1="drawer 1", desklamp_1="countertop 1"
    )
    full = follow(played, "go to drawer 1", "open drawer 1", "take knife 1 from drawer 1")[-1][0]
    for scene in (first_scene(played), full):
        queue, seen, found = deque([(scene, 0)]), {scene}, None
        while found is None:
            here, steps = queue.popleft()
            for deed in deeds(played, here):
                if deed.verb in ("look", "help", "inventory", "examine", "close", "slice"):
                    continue
                after, _ = do(played, here, deed)
                if is_won(played, after):
                    found = steps + 1
                    break
                if after not in seen:
                    seen.add(after)
                    queue.append((after, steps + 1))
        assert len(plan(played, scene)) == found


def test_planner_fetches_a_thing_that_was_delivered_before_it_was_clean() -> None:
    played = game("clean", "mug", "cabinet", mug_1="countertop 1")
    way = ("go to countertop 1", "take mug 1 from countertop 1", "go to cabinet 1", "open cabinet 1")
    dirty = follow(played, *way, "move mug 1 to cabinet 1")[-1][0]
    assert [deed.verb for deed in plan(played, dirty)] == ["take", "go", "clean", "go", "move"]


def test_planner_asked_again_after_each_action_brings_two_things_that_lie_together() -> None:
    played = game("pick_two", "mug", "cabinet", mug_2="countertop 1", mug_1="countertop 1")
    scene = first_scene(played)
    length = len(plan(played, scene))
    for left in reversed(range(length)):  # with one mug in hand it planned to exchange it for the other, forever
        deed = plan(played, scene)[0]
        assert deed in deeds(played, scene)
        scene, _ = do(played, scene, deed)
        assert len(plan(played, scene)) == left
    assert is_won(played, scene)


def test_thoughts_do_not_reveal_what_only_the_planner_knows() -> None:
    env = Kitchen()
    for task in range(300):
        first = env.reset(task)
        for move in env.expert():
            assert re.fullmatch(r"[A-Z][^.\n]*\.", move.thought)
            assert not re.search(r"(?i)optimal|spoiler|oracle|expert|\{", move.thought)
            if move.action.startswith("go to") and "look" not in first:
                assert not re.search(r"\b(is|are) (in|on|at) the", move.thought)
