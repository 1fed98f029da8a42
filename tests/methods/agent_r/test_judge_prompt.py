"""The judge's prompt and the verdict in its answer (docs/agent-r.md, A18 and A19)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfimprove.envs.taxi.env import Taxi
from selfimprove.methods.agent_r.judge_prompt import (
    VERDICTS,
    Did,
    Judgement,
    answer,
    judge_prompt,
    judgement_of,
    parse_verdict,
    task_line,
)


@pytest.mark.parametrize(
    ("reply", "verdict"),
    [
        ("It helps.\nJudgement: Good", "good"),
        ("It harms.\nJudgment: Bad", "bad"),
        ("Hard to say.\njudgement: uncertain.", "uncertain"),
        ("JUDGEMENT: <BAD>", "bad"),
        ("**Judgement:** **Good**", "good"),
        ("**Judgement**: _Uncertain_", "uncertain"),
        ("Judgement:\n\nBad", "bad"),
        ("**Judgement:**\nBad", "bad"),
        ("Judgement：Good", "good"),
        # The original accepts "Not good" as good.
        ("Judgement: Not Good", "bad"),
        ("Judgement: not a very good action", "bad"),
        ("Judgement: this isn't good", "bad"),
        ("Judgement: not bad", "uncertain"),
        ("Judgement: Good, not bad", "good"),
        ("Judgement: Not harmful -> Good", "good"),
        ("Judgement: No errors so Good", "good"),
        ("Judgement: Not helpful → Bad", "bad"),
        ("Judgement: No progress | Bad", "bad"),
        ("Judgement: Not helpful / Bad", "bad"),
        ("Judgement: It does not help thus Bad", "bad"),
        ("Judgement: It makes no progress so it is bad", "bad"),
        ("Judgement: Not really so good", "bad"),
        ("Judgement: not good / bad", "uncertain"),
        ("Judgement: Bad (not good)", "bad"),
        # The last label wins, across both spellings.
        ("Judgement: Good\nBut wait.\nJudgment: Bad", "bad"),
        ("Judgment: Bad\nJudgement: Uncertain", "uncertain"),
        ("Judgement: Good? No, bad.", "bad"),
        ("Judgement: Bad\nA good action would be to get planks.", "bad"),
        ("Judgement: Bad\nJudgement:", "bad"),
        # No verdict. The original accepts the first three as good and treats the empty one as bad.
        ("This is a good action.", None),
        ("Good", None),
        ("My judgement is good", None),
        ("", None),
        ("Judgement:", None),
        ("Judgement: goodness gracious", None),
        ("Judgement: \x00\x1b[2J", None),
    ],
)
def test_a_verdict_is_read_only_after_the_word_judgement_in_either_spelling(reply: str, verdict: str | None) -> None:
    assert parse_verdict(reply) == verdict
    assert judgement_of(reply) == Judgement(verdict=verdict or "uncertain", text=reply, parsed=verdict is not None)


@pytest.mark.parametrize(
    ("line", "verdict"),
    [
        ("I would not say that this is good", "bad"),
        ("I couldn’t for a moment call what it did there good", "bad"),
        ("**Not** good", "bad"),
        ("Nothing good", "bad"),
        ("I would not go so far as to call this action bad", "uncertain"),
        ("Neither good nor bad", "uncertain"),
        ("neither bad, nor good", "uncertain"),
        ("I can't tell whether it is good or bad", "uncertain"),
        ("Neither good nor bad, but wasteful: bad", "bad"),
        # The negation ends with its clause.
        ("It does not go back, good", "good"),
        ("It is not what I would do, but it is good", "good"),
        ("It does not hurt and is good", "good"),
        ("Not good - bad", "bad"),
        ("Not bad and good", "good"),
        ("Good and not bad", "good"),
        ("It is good or bad", "bad"),  # no negation: the last label wins
        # These are not negations.
        ("There is no doubt that this is good", "good"),
        ("Not only good but needed", "good"),
    ],
)
def test_a_negation_applies_to_the_next_label_of_its_clause(line: str, verdict: str) -> None:
    assert parse_verdict(f"Judgement: {line}") == verdict


@given(st.text(max_size=300))
def test_any_text_is_parsed_without_an_error(text: str) -> None:
    assert parse_verdict(text) in (None, *VERDICTS)


@given(st.text(max_size=200), st.sampled_from(VERDICTS), st.sampled_from(["Judgement", "Judgment"]))
def test_an_answer_in_the_requested_form_is_parsed_whatever_its_reasons(reason: str, verdict: Any, word: str) -> None:
    assert parse_verdict(answer(reason, verdict).replace("Judgement", word)) == verdict
    assert parse_verdict(f"{word}: Not good.\n{reason}\n{word}: {verdict}") == verdict


def test_very_long_replies_are_parsed() -> None:
    assert parse_verdict("not " * 20_000 + "Judgement: " + "not " * 20_000) is None
    rule = "-" * 400_000  # in quadratic time twenty minutes, beyond every test's limit
    assert parse_verdict(f"Judgement: not{rule}good") == "bad"
    assert parse_verdict(f"Judgement: not{rule}> good") == "good"
    assert parse_verdict("judgement: good " * 5_000) == "good"
    assert parse_verdict("Judgement: " + "not good or bad and " * 5_000) == "uncertain"


def test_the_prompt_has_definitions_task_log_current_action_and_form_in_this_order() -> None:
    history = [Did("get 1 log", "Got 1 log"), Did("inventory", "Inventory: [log] (1)")]
    (message,) = judge_prompt("textcraft", "Goal: craft stick.", history, Did("get 9 stone", "Got 9 stone"))
    assert message.role == "user"
    places = [
        message.content.index(part)
        for part in (
            "crafting game", "Good, if", "Bad, if", "Uncertain, if", "Task: Goal: craft stick.",
            "Action: get 1 log\nObservation: Got 1 log\nAction: inventory\n", "Current action: get 9 stone",
            "Observation after it: Got 9 stone", "First give your reasons", "Judgement: <Good|Bad|Uncertain>",
        )
    ]  # fmt: skip
    assert places == sorted(places)


def test_the_prompt_of_a_first_step_says_that_nothing_came_before() -> None:
    (message,) = judge_prompt("corridor", "Find the key.", [], Did("right", "A wall."))
    middle = "\n\nTask: Find the key.\n\nLog so far:\n(nothing yet)\n\nCurrent action: right\n"
    assert middle in message.content


def test_each_environment_has_its_own_wording_of_the_prompt() -> None:
    said = {
        name: judge_prompt(name, "T", [], Did("a", "o"))[0].content
        for name in ("textcraft", "webshop", "sciworld", "corridor")
    }
    assert len(set(said.values())) == 4
    assert [name for name, text in said.items() if "science" in text] == ["sciworld"]  # in all of them in the original
    assert [name for name, text in said.items() if "shop" in text] == ["webshop"]


def test_the_short_prompt_has_one_line_of_the_task_and_the_last_steps() -> None:
    task = "Crafting commands:\ncraft 1 a using 1 b\n\nGoal: craft a."
    history = [Did(f"get {i} b", f"Got {i} b") for i in range(5)]
    (message,) = judge_prompt("textcraft", task, history, Did("craft 1 a using 1 b", "Crafted 1 a"), "short")
    assert message.content == (
        "Judge the last crafting step.\nGoal: craft a.\nAction: get 3 b\nObservation: Got 3 b\n"
        "Action: get 4 b\nObservation: Got 4 b\nAction: craft 1 a using 1 b\nObservation: Crafted 1 a\n"
        "Reason, then Judgement: Good, Bad or Uncertain?"
    )
    assert "get 3 b" not in judge_prompt("textcraft", task, history, history[0], "short", dropped=4)[0].content


def test_the_task_line_is_the_line_that_states_the_goal() -> None:
    assert task_line("Goal: x.\nTask: y.\nCrafting commands:\nx\n\nGoal: craft a.") == "Goal: craft a."  # the last one
    assert task_line("Task Description: boil water.\nYou are in the hall.") == "Task Description: boil water."
    assert task_line("Shop [SEP] Instruction: [SEP] find it\nBuy.\nNow.") == "Shop [SEP] Instruction: [SEP] find it"
    assert task_line("\n \n") == ""
    assert task_line("\n \n  Find it.  \nNow.") == "Find it."
    assert task_line("The hall.\n  Goal: boil water. \nIt is dark.") == "Goal: boil water."
    assert task_line("# Files\ntask.py\n# Task\nWhich file?") == "Which file?"
    assert task_line("Which file?\n# Task") == "Which file?"  # nothing after the heading


def test_in_a_mixture_the_task_line_is_not_one_of_the_instruction_s() -> None:
    instruction = "You shop.\nTask: buy what is wanted.\n\nThought: <why>\nAction: search[keywords]"
    assert task_line(f"{instruction}\n\nShop [SEP] find a lamp\nBuy.") == "Shop [SEP] find a lamp"
    assert task_line("# Task\nWhich file?\n\n# Files\ntask.py") == "Which file?"


@pytest.mark.parametrize("style", ["full", "short"])
def test_the_prompt_states_the_goal_of_an_environment_whose_observations_do_not(style: Any) -> None:
    taxi = Taxi()
    goal = "Goal: fetch the passenger P, then bring them to the destination D, and never drive into a wall."
    for task in (taxi.reset(5), f"{taxi.instruction}: it\n\n{taxi.reset(5)}"):  # alone and in a mixture
        assert task_line(f"{task}\n{goal}") == goal
        text = judge_prompt("taxi", task, [], Did("move north", taxi.reset(5)), style)[0].content
        assert f"\n{goal}\n" in text
        assert "taxi" in text.partition("\n")[0]


def test_problems_have_their_own_wording_of_the_prompt() -> None:
    assert judge_prompt("gsm8k", "How many?", [], Did("7", "Wrong."), "short")[0].content.startswith(
        "Judge the last problem step.\nHow many?\n"
    )
    assert "in several attempts" in judge_prompt("gsm8k", "How many?", [], Did("7", "Wrong."))[0].content
