"""Listed actions of an environment that is acted in by text, where there are more of them than labels."""

from __future__ import annotations

from selfimprove.envs.listed import ListedText
from selfimprove.envs.registry import text_env

MOST = 5


def test_of_more_actions_than_labels_the_expert_s_is_kept_and_the_rest_are_drawn_and_counted() -> None:
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
        assert env.reset(task) == state  # the draw is the task's
    assert len(kept) > 10
    assert set(chosen) == set(range(MOST))  # the expert's place tells nothing


def test_where_there_are_labels_enough_every_action_is_listed() -> None:
    game = text_env(name="textcraft").make()
    env = ListedText(game, 15, [str(i) for i in range(200)])
    state = env.reset(7)
    assert list(env.commands().values()) == game.valid_actions()
    assert state.unlisted == 0


def test_labels_are_shuffled_without_touching_the_game_s_own_list() -> None:
    """A game that gives out one list had it shuffled at each look, so that a label did another command than listed."""
    game = text_env(name="textcraft").make()
    own = list("abcdefgh")
    game.valid_actions = lambda: own  # type: ignore[method-assign]
    env = ListedText(game, 15, [str(i) for i in range(200)], shuffle_action=True)
    state = env.reset(7)
    assert own == list("abcdefgh")
    assert state.post.endswith("\n".join(f"Action {label}: {command}" for label, command in env.commands().items()))
    assert list(env.commands().values()) != own
