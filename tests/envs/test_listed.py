"""Listed actions of an environment with text actions, with too few labels and with enough."""

from __future__ import annotations

from selfimprove.envs.interface import Step
from selfimprove.envs.listed import ListedText
from selfimprove.envs.own import TextEnv
from selfimprove.envs.registry import text_env

MOST = 5


def test_with_too_few_labels_the_action_of_the_expert_is_listed_and_unlisted_ones_are_counted() -> None:
    game = text_env(name="textcraft").make()
    env = ListedText(game, 15, "abcde")
    kept, chosen = set(), []
    for task in list(game.task_ids())[::5]:
        state = env.reset(task)
        every, way = game.valid_actions() or [], env.oracle()
        listed = list(env.commands().values())
        assert listed == sorted(listed)
        assert set(listed) <= set(every)
        assert state.unlisted == max(0, len(every) - MOST)
        assert len(listed) == min(MOST, len(every))
        assert way[0] in listed
        if state.unlisted:
            chosen.append(listed.index(way[0]))
            kept.add(tuple(every.index(one) for one in listed))
        assert env.reset(task) == state  # the draw depends only on the task
    assert len(kept) > 10
    assert set(chosen) == set(range(MOST))  # the position of the expert's action reveals nothing


def test_with_enough_labels_every_action_is_listed() -> None:
    game = text_env(name="textcraft").make()
    env = ListedText(game, 15, [str(i) for i in range(200)])
    state = env.reset(7)
    assert list(env.commands().values()) == game.valid_actions()
    assert state.unlisted == 0


class Doors(TextEnv):
    """It lists two doors, of which one is locked."""

    instruction = "Open a door."
    actions = ("open left", "open right")

    def begin(self, task_id: int) -> str:
        return "Two doors."

    def act(self, action: str) -> tuple[str, float, bool]:
        locked = action == "open left"
        return "It is locked." if locked else "It opens.", float(not locked), False

    def step(self, action: str) -> Step:
        step = super().step(action)
        return step._replace(info={**step.info, "valid": step.reward == 1})


def test_a_listed_action_that_is_not_possible_is_invalid() -> None:
    env = ListedText(Doors(), 15, "ab")
    env.reset(0)
    locked, opened = env.step("a"), env.step("b")
    assert (locked.output, locked.valid, opened.output, opened.valid) == ("It is locked.", False, "It opens.", True)


def test_a_repeated_action_has_one_label() -> None:
    game = text_env(name="textcraft").make()
    first, *_ = every = game.valid_actions() or list("abcdefgh")
    game.valid_actions = lambda: [first, first, *every]  # type: ignore[method-assign]
    env = ListedText(game, 15, [str(i) for i in range(200)])
    env.reset(7)
    listed = list(env.commands().values())
    assert len(listed) == len(set(listed)) == len(every)


def test_labels_are_shuffled_without_changing_the_list_of_the_game() -> None:
    """Regression test: a game's own list was shuffled at each call, so labels executed other commands than listed."""
    game = text_env(name="textcraft").make()
    own = list("abcdefgh")
    game.valid_actions = lambda: own  # type: ignore[method-assign]
    env = ListedText(game, 15, [str(i) for i in range(200)], shuffle_action=True)
    state = env.reset(7)
    assert own == list("abcdefgh")
    assert state.post.endswith("\n".join(f"Action {label}: {command}" for label, command in env.commands().items()))
    assert list(env.commands().values()) != own
