"""Conversion of trees to training conversations (docs/agent-r.md, A16 to A26)."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from selfimprove.core.chat import ChatFormat
from selfimprove.core.errors import UserError
from selfimprove.core.records import Example, Message
from selfimprove.core.seeds import rng
from selfimprove.engines.base import EngineError
from selfimprove.engines.config import TransformersEngineConfig
from selfimprove.engines.cpu.engine import TransformersEngine
from selfimprove.envs.interface import EmbeddedWorld, EnvError
from selfimprove.methods.agent_r.convert import Converted, convert
from selfimprove.methods.agent_r.judge import ActorJudge, ScriptedJudge
from selfimprove.methods.agent_r.judge_prompt import Judgement
from selfimprove.methods.agent_r.params import ConvertParams
from selfimprove.methods.agent_r.prompts import OPENING
from selfimprove.methods.agent_r.revise import REVISION_THOUGHTS
from selfimprove.methods.agent_r.tree import Node, Tree
from selfimprove.training.encode import encode_examples
from tests.methods.agent_r.corridor import Corridor
from tests.methods.agent_r.trees import by_hand, grown, leaf_of
from tests.support.tiny import make_tiny_model, train_tokenizer

PATHS = {"abxy": 0.0, "abcd": 1.0, "k": 0.6}
TREE = by_hand(PATHS, ids=True)


class Says:
    """A judge that calls some actions bad, records its calls, and answers late and out of order."""

    def __init__(self, bad: str = "", *, fails: str = "") -> None:
        self.bad, self.fails = bad, fails
        self.asked: list[Any] = []

    async def __call__(self, tree: Tree, index: int) -> Judgement:
        self.asked.append((tree.id, index))
        for _ in range(index % 3):
            await asyncio.sleep(0)
        action = tree.nodes[index].action
        if action in self.fails:
            raise EngineError("the endpoint died: status 503")
        return Judgement(verdict="bad" if action in self.bad else "good", text=f"about {action}")


def made(
    trees: list[Tree], judge: Any = None, world: Any = None, seed: int = 0, earlier: Any = (), **params: Any
) -> Converted:
    cfg = ConvertParams(**{"alpha": 0.5, "beta": 0.2, **params})
    return asyncio.run(convert(trees, judge or Says(), world, cfg, seed, earlier))


def shown(example: Example) -> str:
    text = ""
    for message in example.messages[4:]:
        if message.role == "assistant":
            letter = "!" if message.content.endswith("Action: wait") else message.content[-1]
            text += letter.upper() if message.weight else letter
    return text


def kinds(converted: Converted) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for example in converted.own:
        found.setdefault(example.id.partition("_")[0], []).append(shown(example))
    return found


def test_pairs_are_revised_at_the_transition_point() -> None:
    assert kinds(made([TREE], Says("x"))) == {
        "revision": ["k!ABCD", "abx!CD", "abx!K"],
        "good": ["ABCD", "K"],
    }


def test_a_bad_verdict_before_the_branch_does_not_end_the_walk() -> None:
    assert kinds(made([TREE], Says("aby")))["revision"] == ["k!ABCD", "abxy!CD", "a!K"]


def test_direct_revision_does_not_use_the_judge() -> None:
    judge = Says("x")
    assert kinds(made([TREE], judge, revise=False))["revision"] == ["k!ABCD", "abxy!CD", "abxy!K"]
    assert judge.asked == []
    stats = asyncio.run(convert([TREE], None, None, ConvertParams(revise=False), 0)).stats
    assert stats["revision_examples"] == 3
    assert not {"judged", "transition_found", "dropped_by_judge"} & set(stats)


def test_data_type_good_converts_only_good_trajectories() -> None:
    converted = made([TREE], data_type="good")
    assert kinds(converted) == {"good": ["ABCD", "K"]}
    assert [sorted(row) for row in converted.rows] == [["revise", "revise_log", "task_num"]] * 2
    assert "revision_length" not in converted.stats


def test_an_example_ends_with_its_last_reply_and_keeps_token_ids() -> None:
    example = made([TREE], Says("x")).own[1]
    assert [m.role for m in example.messages] == ["system", "user", "assistant", *["user", "assistant"] * 6]
    assert [m.token_ids for m in example.messages[4::2]] == [[97], [98], [120], None, [99], [100]]
    assert example.source == f"corridor-1:{leaf_of(TREE, 'abxy')}>{leaf_of(TREE, 'abcd')}"


def test_only_the_tokens_of_the_revision_turn_and_the_good_steps_are_trained_on(tmp_path: Path) -> None:
    train_tokenizer(tmp_path)
    chat = ChatFormat.load(tmp_path)
    example = made([by_hand(PATHS)], Says("x")).own[1]  # abx!CD
    ((encoded,), counters) = encode_examples([example], chat, 10**6, pinned=OPENING)
    learnt, text = "", []
    for token, weight in zip(encoded.ids, encoded.token_weights, strict=True):
        if weight and token == chat.end_id:
            text.append(learnt)
            learnt = ""
        elif weight:
            learnt += chat.decode([token])
    assert [said.rpartition("Action: ")[2] for said in text] == ["wait", "c", "d"]
    assert text == [m.content for m in example.messages if m.weight]
    assert counters.cut_attempts == 0


def test_a_small_real_model_can_judge_and_its_unparsable_answers_are_counted(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path, context=160)
    config = TransformersEngineConfig(engine="transformers", slots=4, context=160)
    cfg = ConvertParams(judge_style="short", judge_max_tokens=8)

    async def run(concurrency: int) -> Converted:
        engine = TransformersEngine(config, model, threads=1)
        try:
            judge = ActorJudge(engine, cfg, 7)
            return await convert([TREE], judge, None, cfg.model_copy(update={"concurrency": concurrency}), 0)
        finally:
            await engine.close()

    one, many = asyncio.run(run(1)), asyncio.run(run(8))
    assert one.rows == many.rows  # each node has its own noise, whatever shares its batch
    assert one.stats["judged"] == 5
    assert one.stats["unparsable"] == {"mean": 1.0, "se": 0.0, "n": 5}
    assert kinds(one)["revision"] == ["k!ABCD", "abxy!CD", "abxy!K"]  # no bad verdict: the whole path
    assert all(said["judgement"] == "Uncertain" for row in one.rows for said in row["revise_feedback"])


def test_each_action_is_judged_once_however_many_pairs_share_it() -> None:
    judge = Says()
    converted = made([TREE, TREE], judge)  # the same tree twice: each is judged separately
    assert len(judge.asked) == converted.stats["judged"] == 2 * 5  # a b x y, and k as the bad leaf of abcd
    assert Counter(judge.asked) == Counter([("corridor-1", i) for i in {i for _, i in judge.asked}] * 2)


def test_conversion_reports_revision_lengths_transitions_verdicts_and_counts() -> None:
    stats = made([TREE], Says("x")).stats
    # abx -> x; k -> k, never judged bad; abx against k -> a b x
    assert stats["revision_lengths"] == {"1": 2, "3": 1}
    assert stats["revision_length"]["mean"] == pytest.approx(5 / 3)
    assert stats["transition_found"]["mean"] == pytest.approx(2 / 3)
    assert stats["verdicts"] == {"good": 3, "bad": 1, "uncertain": 0}
    assert (stats["trees"], stats["leaves"], stats["good_leaves"], stats["pairs"]) == (1, 3, 2, 3)
    assert (stats["examples"], stats["revision_examples"], stats["good_examples"], stats["general_examples"]) == (
        5, 3, 2, 0
    )  # fmt: skip


def test_unparsable_answers_and_shortened_logs_are_counted() -> None:
    async def mumbles(tree: Tree, index: int) -> Judgement:
        return Judgement(verdict="uncertain", text="", parsed=index == 2, omitted=int(index == 1))

    stats = made([TREE], mumbles).stats
    assert (stats["unparsable"]["mean"], stats["unparsable"]["n"]) == (4 / 5, 5)
    assert stats["shortened_judgements"]["mean"] == 1 / 5


def test_pairs_whose_judge_fails_are_dropped_and_counted() -> None:
    converted = made([TREE], Says("b", fails="x"))
    assert kinds(converted)["revision"] == ["k!ABCD", "ab!K"]
    assert converted.stats["dropped_by_judge"] == 1
    assert (converted.stats["transition_found"]["mean"], converted.stats["transition_found"]["n"]) == (1 / 2, 2)
    assert converted.stats["revision_lengths"] == {"1": 1, "2": 1}
    assert converted.failed == [("corridor-1:4>6", "judge: the endpoint died: status 503")]
    with pytest.raises(UserError, match=r"all 3 revision trajectories were dropped \(3 by the judge\), of 1 trees"):
        made([TREE], Says(fails="akx"), mix={"good": 0.0})
    with pytest.raises(UserError, match=r"excludes all data: 2 revision trajectories have weight 0\.1 "):
        made([TREE], Says("b", fails="x"), mix={"good": 0.0, "revision": 0.1})


def test_revision_thoughts_vary_between_pairs_trees_and_seeds() -> None:
    trees = [by_hand(PATHS, tree_id=f"corridor-{i}") for i in range(30)]

    def thoughts(seed: int) -> list[str]:
        rows = made(trees, seed=seed).rows
        return [m["content"] for row in rows for m in row["revise_log"] if m["content"].endswith("Action: wait")]

    first = thoughts(0)
    assert len(first) == 90
    assert {text.partition("\n")[0].removeprefix("Thought: ") for text in first} == set(REVISION_THOUGHTS)
    assert len({tuple(first[i : i + 3]) for i in range(0, 90, 3)}) > 20
    assert thoughts(1) != first


class Late(ScriptedJudge):
    """A judge whose answers are delayed by a number of turns of the event loop, drawn for each call by ``delays``."""

    def __init__(self, delays: int) -> None:
        super().__init__({"corridor": Corridor()})
        self.delays, self.answered = delays, list[tuple[str, int]]()

    async def __call__(self, tree: Tree, index: int) -> Judgement:
        for _ in range(rng("late", self.delays, tree.id, index).randrange(50)):
            await asyncio.sleep(0)
        self.answered.append((tree.id, index))
        return await super().__call__(tree, index)


def test_the_result_does_not_depend_on_concurrency_or_on_the_order_in_which_judgements_arrive() -> None:
    trees = grown(range(4))
    plain = made(trees, ScriptedJudge({"corridor": Corridor()}), concurrency=1, max_pairs_per_tree=20)
    assert len(plain.examples) > 20
    orders = []
    for concurrency, delays in ((3, 1), (512, 1), (512, 2)):
        judge = Late(delays)
        assert made(trees, judge, concurrency=concurrency, max_pairs_per_tree=20) == plain
        orders.append(judge.answered)
    assert sorted(orders[0]) == sorted(orders[1]) == sorted(orders[2])
    assert orders[0] != orders[1] != orders[2]


def test_the_order_of_the_examples_depends_on_the_seed() -> None:
    trees = grown(range(4))
    judge = ScriptedJudge({"corridor": Corridor()})
    one, other = (made(trees, judge, seed=seed, max_pairs_per_tree=20) for seed in (0, 1))
    assert len(other.examples) == len(one.examples)
    assert [example.source for example in other.examples] != [example.source for example in one.examples]


def test_the_examples_of_all_kinds_and_iterations_are_shuffled() -> None:
    old = [Example(id=f"old_{i}", messages=[]) for i in range(20)]
    converted = made(grown(range(4)), earlier=old, accumulate=True, max_pairs_per_tree=20)
    in_order = [example.id for example in (*old, *converted.own)]
    shuffled = [example.id for example in converted.examples]
    assert sorted(shuffled) == sorted(in_order)
    for kind in ("old", "revision", "good"):
        places = [place for place, name in enumerate(shuffled) if name.startswith(kind)]
        assert places[-1] - places[0] >= len(places) > 5  # not in one block


def test_thresholds_and_weights_that_keep_nothing_are_refused_with_an_explanation() -> None:
    with pytest.raises(UserError, match=r"1 trees \(0 of them with root value 0\), 3 leaves, 0 good ones \(above"):
        made([TREE], alpha=1.0)
    with pytest.raises(UserError, match=r"0 pairs \(above beta 1 apart\); lower alpha or beta"):
        made([TREE], beta=1.0, mix={"good": 0.0})
    with pytest.raises(UserError, match="0 trees"):
        made([])
    with pytest.raises(UserError, match=r"convert\.mix excludes all data"):
        made([TREE], mix={"good": 0.0, "revision": 0.0})
    only_good = r"excludes all data: 2 good trajectories have weight {} \(convert\.mix\.good\); raise it"
    with pytest.raises(UserError, match=only_good.format("0")):
        made([TREE], data_type="good", mix={"good": 0.0})
    for mix in ({"good": 0.1}, {"good": 0.0, "revision": 0.0}):  # 0.1 rounds to zero examples
        with pytest.raises(UserError, match=only_good.format(f"{mix['good']:g}")):
            made([TREE], beta=1.0, mix=mix)  # no pair
    both = r"3 revision trajectories have weight 0\.1 \(convert\.mix\.revision\), and 2 good .*; raise one of them"
    with pytest.raises(UserError, match=both):
        made([TREE], mix={"good": 0.0, "revision": 0.1})
    assert kinds(made([TREE], beta=1.0)) == {"good": ["ABCD", "K"]}  # no pair, but good trajectories


def test_earlier_examples_are_added_only_with_accumulate() -> None:
    old = [Example(id="old", messages=[Message(role="assistant", content="x", weight=1.0)])]
    assert "old" not in [example.id for example in made([TREE], earlier=old).examples]
    converted = made([TREE], earlier=old, accumulate=True)
    assert len(converted.examples) == 6
    assert old[0] in converted.examples
    assert old[0] not in converted.own
    assert converted.stats["earlier_examples"] == 1
    assert made([TREE], earlier=old, accumulate=True, alpha=1.0).examples == old  # only earlier examples


def test_trees_of_several_environments_are_converted_together() -> None:
    crafted = by_hand({"ab": 0.0, "ac": 1.0}, tree_id="textcraft-1").model_copy(update={"env": "textcraft"})
    converted = made([TREE, crafted, by_hand({"a": 0.0}, tree_id="corridor-9")], Says("x", fails="k"))
    assert converted.stats["environments"] == {
        "corridor": {"trees": 2, "good_leaves": 2, "revisions": 2},  # of three pairs, one was dropped
        "textcraft": {"trees": 1, "good_leaves": 1, "revisions": 1},
    }
    assert {example.source.partition("-")[0] for example in converted.examples} == {"corridor", "textcraft"}
    assert "environments" not in made([TREE]).stats


def test_replay_keeps_the_samples_that_still_succeed_and_reports_their_share() -> None:
    trees = grown(range(10), seed=2)
    judge = ScriptedJudge({"corridor": Corridor()})
    world = EmbeddedWorld(Corridor())
    spliced = made(trees, judge, alpha=0.9, max_pairs_per_tree=20)
    assert "replay_kept" not in spliced.stats
    for worlds in (world, {"corridor": world}):
        played = made(trees, judge, worlds, alpha=0.9, max_pairs_per_tree=20, validate_splice="replay")
        kept = played.stats["replay_kept"]
        assert kept["n"] == spliced.stats["revision_examples"]
        assert 0 < kept["mean"] < 1
        assert played.stats["revision_examples"] == len(played.rows) == round(kept["mean"] * kept["n"])
    # Executing a kept sample reproduces its observations word for word.
    env = Corridor()
    for row in played.rows:
        env.reset(int(row["task_num"]))
        said = row["revise_log"][4:]
        for reply, answer in zip(said[::2], said[1::2], strict=True):
            action = reply["content"].rpartition("Action: ")[2]
            if action == "wait":
                assert answer["content"] == "ok."
            else:
                step = env.step(action)
                assert answer["content"] == step.observation.replace("\n", " ").replace("\t", " ")
        assert step.reward == 1
    assert any(row["revise_log"] not in [old["revise_log"] for old in spliced.rows] for row in played.rows)


def test_if_every_splice_fails_in_its_replay_the_error_says_so() -> None:
    with pytest.raises(UserError, match=r"all 3 revision trajectories were dropped \(3 by the replay\), of 1 trees"):
        made([TREE], world=EmbeddedWorld(Corridor()), validate_splice="replay", mix={"good": 0.0})


def test_a_replay_that_scores_exactly_alpha_is_kept_only_if_thresholds_are_inclusive() -> None:
    trees, judge, world = grown(range(10), seed=2), ScriptedJudge({"corridor": Corridor()}), EmbeddedWorld(Corridor())
    strict, inclusive = (
        made(trees, judge, world, alpha=0.0, beta=0.9, inclusive=inclusive, validate_splice="replay").stats
        for inclusive in (False, True)
    )
    assert strict["pairs"] == inclusive["pairs"]
    assert strict["replay_kept"]["mean"] < inclusive["replay_kept"]["mean"]  # those that score 0


def test_a_replay_executes_the_recorded_action_even_if_the_stored_reply_gives_another() -> None:
    """The actor replied "Action 1: look", then "Action: jump": the first was executed, the stored text has the last."""
    said = {"look": "Thought: t\nAction: look\nThought: u\nAction: jump"}
    nodes = [Node(visits=2, value=1.0, children=[1, 2])]
    for number, (parent, action) in enumerate([(0, "look"), (0, "take key"), (2, "right"), (3, "open door")], start=1):
        last = action in ("look", "open door")
        reward = float(action == "open door")
        nodes.append(
            Node(parent=parent, action=action, reply=said.get(action, f"Thought: t\nAction: {action}"), visits=1,
                 value=1.0 if number > 1 else 0.0, reward=reward, terminal=True, done=last,
                 children=[] if last else [number + 1])
        )  # fmt: skip
    tree = TREE.model_copy(update={"nodes": nodes})  # task 1: the key lies in room 0, the door is in room 1
    converted = made([tree], world=EmbeddedWorld(Corridor()), validate_splice="replay")
    assert converted.stats["replay_kept"]["mean"] == 1
    [row] = converted.rows
    assert [said["content"] for said in row["revise_log"][5:8:2]] == ["You are in room 0 of 5.", "ok."]


def test_a_failing_environment_drops_the_sample_and_a_missing_environment_is_named() -> None:
    class Broken(EmbeddedWorld):
        async def reset(self, task_id: int) -> None:  # type: ignore[override]
            raise EnvError("gone")

    converted = made([TREE], world=Broken(Corridor()), validate_splice="replay")
    assert converted.stats["dropped_by_environment"] == 3
    assert kinds(converted) == {"good": ["ABCD", "K"]}
    for world in (None, {}):  # type: ignore[var-annotated]
        with pytest.raises(UserError, match=r"validate_splice is replay, but environment corridor is not available"):
            made([TREE], world=world, validate_splice="replay")


def test_the_statistics_are_plain_json() -> None:
    json.dumps(made(grown(range(3)), ScriptedJudge({"corridor": Corridor()})).stats, allow_nan=False)
