"""DangerousTaxi with labels: which texts reveal the action, and which texts select one."""

from __future__ import annotations

import pytest

from selfimprove.envs.taxi.listed import EnumeratedTaxi


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("You should move north now.", True),
        ("It would be best to go further north.", True),
        ("Action 1 is right.", True),
        ("Action: 1", True),
        ("The best action is 1.", True),
        ("action number 1", True),
        ("Choose option 1", True),
        ("Proceed north.", True),
        ("Move\nnorth", True),
        ("move  north", True),
        ("Action 10", False),
        ("Driving north helps.", True),
        ("The passenger is one row north.", False),
        ("Moving west was wrong.", False),
        ("The north is free, the passenger waits there.", False),
        ("**Action:** 1", True),
        ("Action (1)", True),
        ('The best action is "1".', True),
        ("Move **north**.", True),
        ("Proceed\n\tnorth", True),
        ("You should move one step to the north.", True),
        ("Drive a cell further in the direction of the north.", True),
        ("Step north, or take a step to the north.", True),
        ("Choose label 1.", True),
        ("The next move: north", True),
        ("Move the taxi one row north.", True),
        ("Then drive it 2 cells to the north", True),
        ("The taxi should be moved north.", True),
        ("MOVE-NORTH", True),
        ("Take north.", True),
        ("North is the way to go.", True),
        ("The right direction is north.", True),
        ("The answer is 1", True),
        ("Pick 1.", True),
        ("1", True),
        ("10", False),
        ("It takes one row north to the passenger.", False),
        ("North is the passenger.", False),
        ("The passenger is one step north of the taxi.", False),
        ("The last step moved the taxi away. One row north waits the passenger.", False),
        ("The last action moved the taxi north, which was good.", False),
        ("The goal is north of here.", False),
        ("Action: 12", False),
        ("Action 2 would be wrong.", False),
        ("The passenger is *one row north*.", False),
        ("From here the passenger is one row north, 1 action away.", False),
    ],
)
def test_a_revealed_action_is_recognised_however_a_chat_model_formats_it(text: str, told: bool) -> None:
    env = EnumeratedTaxi()
    env.reset(61)  # the passenger is one row north: action 1
    assert env.reveals(text) is told


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Collect the passenger.", True),
        ("Now take them aboard", True),
        ("The passenger waits right here.", False),
    ],
)
def test_a_revealed_pickup_is_recognised_in_other_words(text: str, told: bool) -> None:
    env = EnumeratedTaxi()
    env.reset(0)  # the taxi stands at the passenger
    assert env.reveals(text) is told


@pytest.mark.parametrize(
    ("text", "command"),
    [("1", "move north"), (" 1", "move north"), ("1.", "move north"), ("move north", "move north"), ("01", None)],
)
def test_the_command_that_a_text_names_is_executed(text: str, command: str | None) -> None:
    env = EnumeratedTaxi()
    env.reset(61)
    assert env.named(text) == command
    assert env.step(text).valid == (command is not None)
    env.reset(61)
    env.step("3")  # into the wall
    assert env.named(text) is None


@pytest.mark.parametrize(("wasted", "success"), [(14, True), (16, False)])
def test_a_delivery_at_a_cost_of_minus_1_or_more_is_no_success_in_full(wasted: int, success: bool) -> None:
    env = EnumeratedTaxi("full", max_turns=30)
    env.reset(61)
    costs = [env.step(label).cost for label in "01" * (wasted // 2) + "14000"]
    delivered = [env.step(label) for label in "05"]
    assert delivered[1].done
    assert delivered[1].success is (sum(costs) + sum(step.cost for step in delivered) < -1) is success
