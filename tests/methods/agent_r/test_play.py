"""The evaluation loop and revision evaluation (docs/agent-r.md, A4, A30 and A31)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from selfimprove.core.records import Episode, dump_line
from selfimprove.core.seeds import SeedKey
from selfimprove.envs.interface import EmbeddedWorld
from selfimprove.methods.agent_r.acting import act, begin
from selfimprove.methods.agent_r.metrics import evaluate_metrics, outcome
from selfimprove.methods.agent_r.params import EvaluateParams
from selfimprove.methods.agent_r.play import ACTOR, GIVEN, play
from selfimprove.methods.agent_r.search import search
from tests.methods.agent_r.corridor import Corridor
from tests.methods.agent_r.searching import FAR, NEAR, Cut, Failing, Raw, Script, params, said


def speaking(*actions: str, failing: Any = lambda request: False) -> Script:
    """An actor that takes one of these actions per turn and repeats the last one afterwards."""
    return Script(lambda request, index: said(actions[min(request.seed.turn, len(actions) - 1)]), failing=failing)


def assess(task: Any, actor: Any, *, env: Any = None, bad: Any = (), **changes: Any) -> Episode:
    cfg = EvaluateParams(**({"max_turns": 10} | changes))
    return asyncio.run(play(task, EmbeddedWorld(env or Corridor()), actor, cfg, 7, bad))


def test_an_episode_is_played_until_it_is_done() -> None:
    actor = speaking("right", "take key", "right", "right", "open door", "left")
    one = assess(FAR, actor)
    assert [turn.attempt.answer for turn in one.turns] == ["right", "take key", "right", "right", "open door"]
    assert one.rewards == [0, 0.5, 0.5, 0.5, 1]
    assert (one.status, one.env, one.id, one.seed) == ("solved", "corridor", "corridor-8", "7/corridor-8")
    assert one.query == one.prompt[3].content == "The key lies in room 1,\nthe door is in room 3. You are in room 0."
    assert one.turns[1].attempt.text == said("take key")
    assert one.turns[1].observation == "You have the key."
    assert {turn.model for turn in one.turns} == {ACTOR}
    last = actor.asked[-1]
    assert (last.n, last.temperature, last.seed) == (1, 0.0, SeedKey(7, "corridor-8", 4))
    assert len(last.messages) == 4 + 2 * 4


def test_a_turn_keeps_its_reply_s_token_ids_and_that_it_was_cut_unless_the_reply_was_given() -> None:
    one = assess(NEAR, Cut(lambda request, index: said("left")), bad=[said("right")], max_turns=2)
    assert [(turn.attempt.finish, turn.attempt.token_ids) for turn in one.turns] == [
        (None, None), ("length", [7, 8]), ("length", [7, 8])
    ]  # fmt: skip
    assert [turn.omitted for turn in one.turns] == [0, 0, 0]


def test_an_episode_ends_after_max_turns_with_the_last_score() -> None:
    one = assess(FAR, speaking("right", "take key", "look"), max_turns=4)
    assert (len(one.turns), one.rewards[-1], one.status) == (4, 0.5, "unsolved")
    assert [turn.attempt.valid for turn in one.turns] == [True, True, False, False]


@pytest.mark.parametrize("env", [Corridor, Raw])
def test_a_negative_score_counts_as_zero_and_ends_the_episode(env: Any) -> None:
    one = assess(NEAR, speaking("take key", "jump", "open door"), env=env())
    assert one.rewards == [0.5, 0]
    assert one.status == "unsolved"
    assert all(turn.attempt.valid for turn in one.turns)  # Raw says nothing about it


def test_wait_counts_as_a_step_and_does_not_reach_the_environment() -> None:
    env = Corridor()
    one = assess(NEAR, speaking("take key", "wait", "wait", "look"), env=env, max_turns=3)
    assert [(turn.observation, turn.attempt.reward) for turn in one.turns[1:]] == [("ok.", 0.5)] * 2
    assert env.steps == 1
    assert len(one.turns) == 3


def test_revision_evaluation_continues_from_given_replies() -> None:
    actor = speaking("take key", "open door")
    bad = [said("right"), "Thought 1: Back.\nAction 1: left"]
    one = assess(NEAR, actor, bad=bad, max_turns=2)  # given steps do not count towards max_turns
    assert [turn.model for turn in one.turns] == [GIVEN, GIVEN, ACTOR, ACTOR]
    assert [turn.attempt.text for turn in one.turns[:2]] == [said("right"), "Thought: Back.\nAction: left"]
    assert one.status == "solved"
    assert [m.content for m in actor.asked[0].messages[4:]] == [
        said("right"), "You are in room 1 of 5.", "Thought: Back.\nAction: left", "You are in room 0 of 5.",
    ]  # fmt: skip
    assert one.id.startswith("corridor-0-")
    assert one.id == assess(NEAR, speaking("look"), bad=bad).id != assess(NEAR, actor, bad=bad[:1]).id


def test_a_beginning_that_ends_the_episode_leaves_no_step_for_the_policy() -> None:
    actor = speaking("take key")
    one = assess(NEAR, actor, bad=[said("jump"), said("left")])
    assert (actor.asked, len(one.turns), one.rewards, one.status) == ([], 1, [0.0], "unsolved")


def test_a_long_history_is_cut_only_in_the_model_s_prompt() -> None:
    class Narrow(Script):
        def fits(self, messages: Any, max_tokens: Any) -> bool:
            return len(messages) <= 8

    actor = Narrow(lambda request, index: said("left"))
    one = assess(FAR, actor, max_turns=6)
    assert max(len(request.messages) for request in actor.asked) == 8
    assert len(one.turns) == 6
    kept = list(actor.asked[5].messages)
    assert kept[:4] == one.prompt
    assert [m.role for m in kept[4:]] == ["assistant", "user"] * 2
    assert [turn.omitted for turn in one.turns] == [0, 0, 0, 2, 4, 6]  # messages that the model was not shown
    assert evaluate_metrics([one])["shortened_prompts"]["mean"] == 3 / 6


def test_replies_cut_by_the_token_limit_are_counted() -> None:
    one = assess(FAR, speaking("left"), max_turns=4)
    assert evaluate_metrics([one])["cut_completions"]["mean"] == 0
    one.turns[1].attempt.finish = "length"
    assert evaluate_metrics([one])["cut_completions"]["mean"] == 1 / 4


def test_a_failure_blocks_the_episode_and_keeps_the_earlier_turns() -> None:
    one = assess(FAR, speaking("right", failing=lambda request: request.seed.turn == 2))
    assert (one.status, len(one.turns), one.error) == ("blocked", 2, "the endpoint died")
    lost = assess(FAR, speaking("right"), env=Failing(1))
    assert (lost.status, len(lost.turns), lost.error) == ("blocked", 1, "the server forgot the episode")
    away = assess(FAR, speaking("right"), env=Failing(-1))
    assert (away.status, away.prompt, away.query) == ("blocked", [], "")
    assert Episode.model_validate_json(dump_line(away)) == away


def test_evaluation_reproduces_the_paths_of_a_searched_tree() -> None:
    """Playing a path of a tree gives the same actions, observations and scores."""
    world = EmbeddedWorld(Corridor())
    tree = asyncio.run(search(FAR, world, Script(), params(n_gen=4), 1))
    for leaf in tree.leaves():
        nodes = [tree.nodes[i] for i in tree.path(leaf)]
        actor = Script(lambda request, index, nodes=nodes: nodes[request.seed.turn].reply)
        one = assess(FAR, actor, max_turns=len(nodes))
        assert [(t.attempt.answer, t.observation, t.attempt.reward, t.attempt.valid) for t in one.turns] == [
            (node.action, node.observation, node.reward, node.valid) for node in nodes
        ]


def test_acting_does_not_change_the_previous_state() -> None:
    async def twice() -> Any:
        world = EmbeddedWorld(Corridor())
        _, (start,) = await begin(world, FAR)
        first = await act(world, start, said("right"))
        await act(world, first, said("take key"))
        return first, await act(world, start, said("right"))

    first, again = asyncio.run(twice())
    assert first == again


def test_if_the_environment_maps_an_action_the_executed_action_is_recorded() -> None:
    class Mapping(Corridor):
        def step(self, action: str) -> Any:
            step = super().step("right" if action == "go right" else action)
            return step._replace(info={**step.info, "mapped_to": "right"}) if action == "go right" else step

    one = assess(FAR, speaking("go right", "take key"), env=Mapping(), max_turns=2)
    assert [turn.attempt.answer for turn in one.turns] == ["right", "take key"]
    assert one.turns[0].attempt.text == said("go right")  # the reply itself is unchanged


def test_an_action_that_the_environment_maps_to_wait_is_no_revision_and_can_be_repeated() -> None:
    class Waiting(Corridor):
        def step(self, action: str) -> Any:
            if action != "wait a bit":
                return super().step(action)
            return super().step("right")._replace(info={"mapped_to": "wait"})

    one = assess(FAR, speaking("wait a bit"), env=Waiting(), max_turns=1)
    assert outcome(one).values["revisions"] == 0
    action = one.turns[0].attempt.answer

    async def again() -> Any:
        world = EmbeddedWorld(Waiting())
        _, (start,) = await begin(world, FAR)
        return await act(world, start, one.turns[0].attempt.text, action)

    assert asyncio.run(again()).observation == one.turns[0].observation


def test_a_given_reply_has_the_same_action_as_when_it_was_generated() -> None:
    both = "Thought: a.\nAction 1: right\nAction: left"
    _, states = asyncio.run(begin(EmbeddedWorld(Corridor()), FAR, [both]))
    assert states[-1].action == "right"
