"""Conversion of episodes to training examples (docs/rise.md, R19 to R23)."""

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfimprove.core.errors import UserError
from selfimprove.core.records import Example, Message, read_jsonl, write_jsonl
from selfimprove.interop.rise import to_dataset
from selfimprove.methods.rise.convert import (
    convert,
    dedup,
    keep,
    select,
    single_turn,
)
from selfimprove.methods.rise.objective import reward_baselines, unweighted, weights
from selfimprove.methods.rise.params import ConvertParams
from selfimprove.methods.rise.prompts import opening
from tests.methods.rise.episodes import attempt, episode, run
from tests.pipeline.workbench import Workbench

CRITERIA = ["all", "better", "best", "success"]


def config(**changes: Any) -> ConvertParams:
    return ConvertParams(**({"remove_duplication": False, "shuffle": False} | changes))


def finals(converted: Any) -> Any:
    return [one.messages[-1].content for one in converted.examples]


@pytest.mark.parametrize(
    ("rewards", "all_", "better", "best", "success"),
    [
        ([1], [0], [0], [0], [0]),
        ([0], [0], [0], [0], []),
        ([0, 1], [0, 1], [0, 1], [0, 1], [1]),
        ([0, 0, 1], [0, 1, 2], [0, 2], [0, 1, 2], [2]),
        ([0, -1, 0], [0, 1, 2], [0, 2], [0, 2], []),  # better: above the previous one; best: a running maximum
        ([0, -1, 0, 0], [0, 1, 2, 3], [0, 2], [0, 2, 3], []),
        ([-1, 0, -1, 0], [0, 1, 2, 3], [0, 1, 3], [0, 1, 3], []),
        ([-1, -1, -1], [0, 1, 2], [0], [0, 1, 2], []),
        ([0, 1, 0, 1], [0, 1], [0, 1], [0, 1], [1]),  # attempts after the first 1 are dropped
        ([], [], [], [], []),
    ],
)
def test_each_criterion_keeps_the_expected_attempts(
    rewards: Any, all_: Any, better: Any, best: Any, success: Any
) -> None:
    assert [keep(rewards, criteria) for criteria in CRITERIA] == [all_, better, best, success]  # type: ignore[arg-type]


@given(st.lists(st.sampled_from([-1.0, 0.0, 1.0]), max_size=8))
def test_no_criterion_keeps_or_considers_an_attempt_after_the_first_success(rewards: list[float]) -> None:
    kept = {criteria: keep(rewards, criteria) for criteria in CRITERIA}  # type: ignore[arg-type]
    stop = rewards.index(1) + 1 if 1 in rewards else len(rewards)
    assert kept["all"] == list(range(stop))
    assert kept["success"] == ([stop - 1] if 1 in rewards else [])
    assert set(kept["better"]) | set(kept["best"]) <= set(kept["all"])
    assert {criteria: keep(rewards[:stop], criteria) for criteria in CRITERIA} == kept  # type: ignore[arg-type]


@given(st.lists(st.sampled_from([-1.0, 0.0, 1.0]), min_size=1, max_size=8))
def test_every_criterion_but_success_keeps_the_first_attempt(rewards: list[float]) -> None:
    for criteria in ("all", "better", "best"):
        assert keep(rewards, criteria)[0] == 0  # type: ignore[arg-type]


def test_an_unknown_criterion_is_refused() -> None:
    with pytest.raises(ValueError):
        keep([0.0], "single_best")  # type: ignore[arg-type]


def test_dedup_ignores_outer_whitespace_and_drops_empty_and_repeated_attempts() -> None:
    assert dedup(["a", " a\n", "", "  ", "b", "a", "A"]) == [0, 4, 6]
    one = episode(attempt(0, "same"), attempt(0, " same "), attempt(-1, "  "), attempt(1, "right"))
    examples = convert([one], config(remove_duplication=True), seed=0).examples
    assert [example.messages[-1].content for example in examples] == ["same", "right"]
    # attempts that are not trained on stay in the prompt, since the model saw them
    seen = [text for turn in one.turns[:3] for text in (turn.attempt.text, turn.observation)]
    assert [m.content for m in examples[1].messages[3:]] == [*seen, "right"]
    for seed in (one.seed, ""):  # "": a log of the release
        asis = convert([one.model_copy(update={"seed": seed})], config(), seed=0)
        assert finals(asis) == ["same", " same ", "  ", "right"]


def test_dedup_strips_the_attempts_trained_on_and_keeps_generated_ids(chat: Any) -> None:
    ids = chat.content_ids(Message(role="assistant", content="  ab\n"))
    one = episode(
        [attempt(-1, " worse "), attempt(0, "  ab\n", token_ids=ids, finish="stop")],
        attempt(0, "ab"),
        attempt(1, " \tba "),
    )
    examples = convert([one], config(remove_duplication=True), seed=0).examples
    told = [[said["value"] for said in row["conversations"]][3:] for row in to_dataset(examples)]
    no = one.turns[0].observation
    assert told == [["ab"], ["  ab\n", no, "ab", no, "ba"]]
    final = chat.encode(examples[0].messages)
    assert final.ids[final.spans[-1].start : final.spans[-1].end] == ids  # never tokenised again
    written = examples[1].messages[-1]
    assert chat.content_ids(written) == chat.content_ids(Message(role="assistant", content="ba"))
    assert [turn.attempt.text for turn in one.turns] == ["  ab\n", "ab", " \tba "]  # the episode is unchanged
    plain = to_dataset(convert([one], config(), seed=0).examples)
    assert plain[2]["conversations"][-1]["value"] == " \tba "


@given(st.lists(st.text(alphabet="ab \n\t", max_size=4), max_size=6))
def test_no_trained_attempt_of_a_deduplicated_data_set_has_outer_whitespace(texts: list[str]) -> None:
    one = episode(*(attempt(0, text) for text in [*texts, "right"]))
    rows = to_dataset(convert([one], config(remove_duplication=True), seed=0).examples)
    said = [row["conversations"][-1]["value"] for row in rows]
    assert said == [text.strip() for text in said]
    assert len(rows) == len({text.strip() for text in [*texts, "right"]} - {""})


def test_criteria_apply_to_the_attempts_that_dedup_kept() -> None:
    one = episode(attempt(0, "x"), attempt(-1, "x "), attempt(0, "y"))
    assert len(select(one, "better", False)) == 2  # y beats the repeated x
    assert len(select(one, "better", True)) == 1  # y does not beat the first x


@given(st.lists(st.text(alphabet="ab \n", max_size=3), max_size=10))
def test_dedup_is_idempotent(texts: list[str]) -> None:
    left = [texts[i] for i in dedup(texts)]
    assert dedup(left) == list(range(len(left)))
    assert {text.strip() for text in left} == {text.strip() for text in texts} - {""}


def test_only_success_drops_trajectories_without_success() -> None:
    episodes = [run(0, 0, id="lost"), run(0, 1, id="won"), run(id="blocked", status="blocked")]
    converted = convert(episodes, config(only_success=True), seed=0)
    assert [example.source for example in converted.examples] == ["won", "won"]
    assert converted.stats["dropped_without_success"] == 2
    assert len(convert(episodes, config(), seed=0).examples) == 4


def test_weights_are_exponential_and_only_on_the_last_message() -> None:
    assert weights([1, 0, -1], 0.4) == pytest.approx([12.1825, 1.0, 0.0821], abs=5e-5)
    examples = convert([run(-1, 0, 1)], config(), seed=0).examples
    assert [example.messages[-1].weight for example in examples] == [math.exp(r / 0.4) for r in (-1, 0, 1)]
    weighted = [message.model_copy(update={"weight": 1.0}) for message in opening("Q?")]
    examples += convert([run(0, prompt=weighted)], config(), seed=0).examples
    assert all(message.weight == 0 for example in examples for message in example.messages[:-1])
    assert {message.weight for e in convert([run(0, 1)], config(weighted=False), seed=0).examples
            for message in e.messages[-1:]} == {1.0}  # fmt: skip


def test_unusable_temperatures_are_refused() -> None:
    for temperature in (0.0, -1.0, float("nan"), 1e-4):
        with pytest.raises(UserError, match=r"convert\.reward_temperature"):
            weights([1.0], temperature)


def test_reward_baselines_are_means_by_problem_or_by_turn() -> None:
    episodes = (run(0, 1, id="a"), run(-1, -1, id="b"))
    samples = [(e.id, s.index, s.reward) for e in episodes for s in select(e, "all", False)]
    assert reward_baselines(samples, "none") == [0, 0, 0, 0]
    with pytest.raises(ValueError, match="there is no baseline 'problem-mean'; choose one of none, problem_mean"):
        reward_baselines(samples, "problem-mean")  # type: ignore[arg-type]
    assert reward_baselines(samples, "problem_mean") == [0.5, 0.5, -1, -1]
    assert reward_baselines(samples, "turn_mean") == [-0.5, 0.0, -0.5, 0.0]
    converted = convert([run(0, 1)], config(reward_baseline="problem_mean"), seed=0)
    assert [e.messages[-1].weight for e in converted.examples] == pytest.approx([math.exp(-1.25), math.exp(1.25)])


def test_only_the_chosen_attempt_is_trained_on_and_ties_go_to_the_earliest() -> None:
    one = episode([attempt(0, "first"), attempt(0, "second"), attempt(-1, "third")], [attempt(0, "p"), attempt(1, "q")])
    assert finals(convert([one], config(), seed=0)) == ["first", "q"]


def test_shuffle_is_seeded_and_ids_follow_the_final_order() -> None:
    episodes = [run(0, 1, id=f"p{i}") for i in range(30)]
    plain = convert(episodes, config(), seed=1).examples
    one, same, other = (convert(episodes, config(shuffle=True), seed=seed).examples for seed in (1, 1, 2))
    assert one == same
    assert [e.source for e in one] != [e.source for e in plain]
    assert [e.source for e in one] != [e.source for e in other]
    assert sorted(map(str, (e.messages for e in one))) == sorted(map(str, (e.messages for e in plain)))
    assert [e.id for e in one] == [e.id for e in plain] == [f"identity_{i}" for i in range(60)]
    first, again, drawn = (single_turn(episodes, seed=seed) for seed in (1, 1, 2))
    assert first == again != drawn
    assert [e.source for e in single_turn(episodes, seed=1, shuffle=False)] == [e.id for e in episodes]


def test_the_final_attempt_keeps_its_ids_and_the_tokens_before_it_are_the_prompt(chat: Any) -> None:
    ids = chat.content_ids(Message(role="assistant", content="ab"))
    one = episode(attempt(0, "ab", token_ids=[*ids, *ids], finish="length"), attempt(1, "ba", token_ids=ids))
    last = convert([one], config(), seed=0).examples[-1]
    assert last.messages[3].token_ids == [*ids, *ids]
    assert last.messages[3].finish == "length"
    prompt = [*one.prompt, last.messages[3], last.messages[4]]
    generated_from = chat.encode(prompt, add_generation_prompt=True).ids
    trained_on = chat.encode(last.messages)
    assert trained_on.ids[: trained_on.spans[-1].start] == generated_from
    assert trained_on.ids[trained_on.spans[-1].start : trained_on.spans[-1].end] == ids


@pytest.mark.parametrize("omitted", [3, 10])
def test_a_turn_with_an_inconsistent_count_of_omitted_messages_is_refused(omitted: int) -> None:
    one = run(0, 0, 0, 0, 1)
    one.turns[4].omitted = omitted
    with pytest.raises(UserError, match=f"episode p1, turn 5: its prompt omits {omitted} of 8 earlier messages"):
        convert([one], config(), seed=0)


def test_failed_turns_and_blocked_episodes_do_not_stop_the_conversion() -> None:
    episodes = [
        run(id="never", status="blocked"),
        episode(attempt(0, "a"), attempt(None, "blocked"), id="later", status="blocked"),
        run(1, id="fine"),
    ]
    converted = convert(episodes, config(), seed=0)
    assert finals(converted) == ["a", "try 0: 1"]
    assert [converted.stats[name] for name in ("episodes", "blocked", "attempts")] == [3, 2, 2]


def test_conversion_reports_token_statistics_and_a_reward_histogram(chat: Any) -> None:
    episodes = [run(0, 1, id="a"), run(-1, 0, id="b")]
    converted = convert(episodes, config(), seed=0, chat=chat, max_length=10**6)
    encoded = [chat.encode(e.messages) for e in converted.examples]
    prompts = [e.spans[-1].start for e in encoded]
    responses = [e.spans[-1].stop - e.spans[-1].start for e in encoded]
    mean = sum(prompts) / 4
    assert converted.stats["prompt_tokens"] == pytest.approx(
        {"mean": mean, "variance": sum((p - mean) ** 2 for p in prompts) / 4}
    )
    assert converted.stats["response_tokens"]["mean"] == pytest.approx(sum(responses) / 4)
    assert converted.stats["over_length"] == 0
    limit = sorted(e.spans[-1].stop for e in encoded)[1]
    long = convert(episodes, config(), seed=0, chat=chat, max_length=limit)
    assert long.stats["over_length"] == sum(e.spans[-1].stop > limit for e in encoded) > 0
    assert len(long.examples) == 4  # over-long examples are counted, never dropped here
    assert long.histogram == [{"reward": -1, "count": 1}, {"reward": 0, "count": 2}, {"reward": 1, "count": 1}]


def test_counters_add_up_and_the_effective_number_of_examples_is_reported() -> None:
    episodes = [run(0, 0, 1, id="a"), episode(attempt(0, "x"), attempt(0, "x"), id="b")]
    stats = convert(episodes, config(criteria="better", remove_duplication=True), seed=0).stats
    assert (
        stats["attempts"]
        == 5
        == (stats["examples"] + stats["dropped_empty_or_repeated"] + stats["dropped_by_criteria"])
    )
    assert stats["examples_by_turn"] == {"turn1": 2, "turn3": 1}
    w = [1.0, 1.0, math.exp(2.5)]
    assert stats["weight"]["mean"] == pytest.approx(sum(w) / 3)
    assert (stats["weight"]["min"], stats["weight"]["max"]) == (1, pytest.approx(math.exp(2.5)))
    assert stats["weight"]["effective_examples"] == pytest.approx(sum(w) ** 2 / sum(x * x for x in w))


def test_accumulated_examples_are_added_unchanged_except_for_new_ids() -> None:
    earlier = convert([run(0, 1, id="old")], config(reward_temperature=1.0), seed=0).examples
    converted = convert([run(1, id="new")], config(shuffle=True), seed=3, earlier=earlier)
    assert sorted(e.source for e in converted.examples) == ["new", "old", "old"]
    assert [e.id for e in converted.examples] == ["identity_0", "identity_1", "identity_2"]
    assert {e.messages[-1].weight for e in converted.examples} == {1.0, math.exp(1.0), math.exp(2.5)}


def test_with_accumulate_an_iteration_that_solves_nothing_keeps_its_parent_s_examples(
    rise_bench: Workbench, tmp_path: Path
) -> None:
    changes = {"accumulate": True, "criteria": "success"}
    folder = rise_bench.copy(tmp_path / "bench", {"rise": {"iterations": {"iter1": {"convert": changes}}}})
    (folder / "data/rise/iter1").mkdir(exist_ok=True)
    write_jsonl(folder / "data/rise/iter1/episodes.jsonl", [run(0, 0, id="lost")])
    assert "no examples remain from 1 episodes" in rise_bench.refused(folder, "rise.convert", "iter1")
    earlier = convert([run(1, id="old")], config(), seed=0).examples
    write_jsonl(folder / "data/rise/base/train/collected.jsonl", earlier)
    rise_bench.done(folder, "rise.convert", "iter1")
    for name in ("examples", "collected"):
        assert read_jsonl(folder / f"data/rise/iter1/train/{name}.jsonl", Example) == earlier


def test_control_single_turn_has_the_same_correct_answers_as_first_attempts() -> None:
    episodes = [run(0, 1, id="taught"), run(1, id="alone"), run(0, 0, id="lost"), run(id="gone", status="blocked")]
    examples = single_turn(episodes, seed=0, shuffle=False)
    assert [(e.source, [m.role for m in e.messages[3:]]) for e in examples] == [
        ("taught", ["assistant"]),
        ("alone", ["assistant"]),
    ]
    right = [e.messages[-1] for e in convert(episodes, config(criteria="success", weighted=False), seed=0).examples]
    assert [e.messages[-1] for e in examples] == right
    assert single_turn(episodes, seed=0) == single_turn(episodes, seed=0)
    (first,) = single_turn([run(0, 1, 1)], seed=0)  # as in an imported log: the release plays on
    assert first.messages[-1].content == "try 1: 1"


def test_control_single_turn_learns_the_same_stripped_answers_as_the_examples(
    rise_bench: Workbench, tmp_path: Path
) -> None:
    """What an endpoint or a log of the release has answered has no token ids, so its text is what is trained on."""
    folder = rise_bench.copy(tmp_path / "bench", {})
    (folder / "data/rise/iter1").mkdir(exist_ok=True)
    write_jsonl(folder / "data/rise/iter1/episodes.jsonl", [episode(attempt(1, " It is 72.\n"))])
    rise_bench.done(folder, "rise.convert", "iter1")
    for name in ("examples", "single_turn"):
        (one,) = read_jsonl(folder / f"data/rise/iter1/train/{name}.jsonl", Example)
        assert one.messages[-1].content == "It is 72."


def test_control_unweighted_is_the_same_data_with_weight_one() -> None:
    examples = convert([run(-1, 0, 1)], config(), seed=0).examples
    plain = unweighted(examples)
    assert [[m.weight for m in e.messages] for e in plain] == [
        [float(m.weight > 0) for m in e.messages] for e in examples
    ]
    assert [[m.content for m in e.messages] for e in plain] == [[m.content for m in e.messages] for e in examples]
    assert plain == convert([run(-1, 0, 1)], config(weighted=False), seed=0).examples


def test_a_conversion_that_leaves_no_examples_is_refused() -> None:
    with pytest.raises(UserError, match="no examples remain from 1 episodes"):
        convert([run(0, 0)], config(only_success=True), seed=0)


def test_a_conversion_that_may_be_empty_reports_zeros(chat: Any) -> None:
    stats = convert([run(0, 0)], config(only_success=True), seed=0, chat=chat, may_be_empty=True).stats
    assert (stats["examples"], stats["dropped_without_success"], stats["over_length"]) == (0, 1, 0)
    assert stats["prompt_tokens"] == stats["response_tokens"] == {"mean": 0.0, "variance": 0.0}
    assert set(stats["weight"].values()) == {0.0}


rewards = st.lists(st.sampled_from([-1.0, 0.0, 1.0, None]), max_size=5)


@given(st.lists(rewards, min_size=1, max_size=5), st.sampled_from(CRITERIA), st.booleans(), st.booleans())
def test_every_example_alternates_roles_and_ends_in_an_attempt_with_weight(
    runs: Any, criteria: Any, remove: bool, only: bool
) -> None:
    episodes = [
        episode(*(attempt(reward, f"try {reward}") for reward in one), id=f"p{i}") for i, one in enumerate(runs)
    ]
    try:
        converted = convert(episodes, config(criteria=criteria, remove_duplication=remove, only_success=only), seed=0)
    except UserError:
        return
    for example in converted.examples:
        roles = [message.role for message in example.messages]
        assert roles == ["user", "assistant"] * (len(roles) // 2)
        assert example.messages[-1].weight > 0
        assert example.messages[:3] == episodes[0].prompt
    assert sum(row["count"] for row in converted.histogram) == len(converted.examples)


def test_the_control_single_turn_has_no_earlier_turns_even_if_the_answer_s_prompt_omitted_some() -> None:
    one = run(0, 0, 1)
    one.turns[2].omitted = 2
    (first,) = single_turn([one], seed=0)
    assert [m.content for m in first.messages] == [*(m.content for m in one.prompt), "try 2: 1"]


def test_best_drops_an_attempt_that_equals_the_previous_one_but_not_the_best() -> None:
    assert keep([0, -1, -1], "best") == [0]


def test_only_success_keeps_a_trajectory_that_went_on_after_its_success() -> None:
    converted = convert([run(0, 1, 0, id="on")], config(only_success=True), seed=0)
    assert finals(converted) == ["try 0: 0", "try 1: 1"]
