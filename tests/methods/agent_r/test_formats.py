"""Logs in the original's schema, and training formats (docs/agent-r.md, A44)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfimprove.core.errors import UserError
from selfimprove.core.records import Example, Message
from selfimprove.methods.agent_r.convert import convert
from selfimprove.methods.agent_r.formats import from_log, from_openai, from_xtuner, good_row, to_openai, to_xtuner
from selfimprove.methods.agent_r.judge_prompt import Judgement
from selfimprove.methods.agent_r.params import ConvertParams
from selfimprove.methods.agent_r.tree import Tree
from tests.methods.agent_r.trees import by_hand, leaf_of

TREE = by_hand({"ax": 0.0, "ab": 1.0})
OPENED = [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "Find the way."},
    {"role": "assistant", "content": "Ok."},
    {"role": "user", "content": "You stand at a fork."},
]


async def judge(tree: Tree, index: int) -> Judgement:
    action = tree.nodes[index].action
    return Judgement(verdict="bad" if action == "x" else "good", text=f"Thinking about {action}.\nJudgement: So.")


CONVERTED = asyncio.run(convert([TREE], judge, None, ConvertParams(mix={"good": 0.0}), 0))  # type: ignore[arg-type]
(ROW,) = CONVERTED.rows
(EXAMPLE,) = CONVERTED.own


def agent(letter: str, loss: bool) -> dict:
    return {"role": "assistant", "content": f"Thought: go {letter}.\nAction: {letter}", "loss": loss}


def user(text: str) -> dict:
    return {"role": "user", "content": text}


def test_a_pair_is_logged_in_the_original_s_schema_with_the_judge_s_feedback() -> None:
    turn = ROW["revise_log"][8]
    assert turn["content"].endswith("\nAction: wait")
    assert {
        "task_num": "1",
        "revise_log": [
            *OPENED, agent("a", False), user("saw a"), agent("x", False), user("saw ax"),
            {"role": "assistant", "content": turn["content"], "loss": True}, user("ok."),
            agent("b", True), user("saw ab"),
        ],
        "high_log": [*OPENED, agent("a", True), user("saw a"), agent("b", True), user("saw ab")],
        "low_log": [*OPENED, agent("a", True), user("saw a"), agent("x", True), user("saw ax")],
        "task_description": "You stand at a fork.",
        "revise": True,
        "revise_feedback": [
            {"revision_feedback": f"Thinking about {action}.\nJudgement: So.", "action": action, "obs": seen,
             "judgement": verdict}
            for action, seen, verdict in (("a", "saw a", "Good"), ("x", "saw ax", "Bad"))
        ],
    } == ROW  # fmt: skip
    assert list(ROW) == [
        "task_num", "revise_log", "high_log", "low_log", "task_description", "revise", "revise_feedback"
    ]  # fmt: skip


def test_direct_revision_has_no_feedback() -> None:
    cfg = ConvertParams(revise=False)
    (row,) = asyncio.run(convert([TREE], None, None, cfg, 0)).rows
    assert (row["revise"], row["revise_feedback"]) == (False, [])


def test_a_good_trajectory_is_logged_in_the_original_s_schema() -> None:
    assert good_row(TREE, leaf_of(TREE, "ab"), revise=False) == {
        "task_num": "1",
        "revise_log": [*OPENED, agent("a", True), user("saw a"), agent("b", True), user("saw ab")],
        "revise": False,
    }


def test_a_log_is_read_back_as_its_example_plus_the_last_observation() -> None:
    again = from_log(json.loads(json.dumps(ROW)), "log.jsonl, line 1")
    assert again.messages[:-1] == EXAMPLE.messages  # the log has the last observation too
    assert again.messages[-1] == Message(role="user", content="saw ab")
    assert again.source == "1"


def test_every_turn_in_xtuner_s_format_has_a_loss_flag() -> None:
    turn = ROW["revise_log"][8]["content"]
    assert to_xtuner(EXAMPLE) == {
        "conversation": [
            {"system": "You are a helpful assistant.", "input": "Find the way.", "output": "Ok.",
             "output_with_loss": False},
            {"system": "", "input": "You stand at a fork.", "output": "Thought: go a.\nAction: a",
             "output_with_loss": False},
            {"system": "", "input": "saw a", "output": "Thought: go x.\nAction: x", "output_with_loss": False},
            {"system": "", "input": "saw ax", "output": turn, "output_with_loss": True},
            {"system": "", "input": "ok.", "output": "Thought: go b.\nAction: b", "output_with_loss": True},
        ]
    }  # fmt: skip


def test_loss_flags_survive_every_format() -> None:
    """The original's converter loses them, so bad steps are trained on."""
    weights = [m.weight for m in EXAMPLE.messages if m.role == "assistant"]
    assert weights == [0, 0, 0, 1, 1]
    for there, back in ((to_xtuner, from_xtuner), (to_openai, from_openai)):
        again = back(json.loads(json.dumps(there(EXAMPLE))), "line 1")
        assert again.messages == EXAMPLE.messages


def test_openai_messages_have_a_loss_flag_on_every_reply() -> None:
    rows = to_openai(EXAMPLE)["messages"]
    assert [row.get("loss") for row in rows] == [None, None, False, None, False, None, False, None, True, None, True]
    assert [sorted(row) for row in rows[:3]] == [["content", "role"], ["content", "role"], ["content", "loss", "role"]]
    alone = Example(id="e", messages=[Message(role="assistant", content="Hello.", weight=1)])
    assert to_openai(alone) == {"messages": [{"role": "assistant", "content": "Hello.", "loss": True}]}


def test_a_trained_observation_has_no_openai_form() -> None:
    """As in XTuner's format: the flag of a message that is no reply is ignored, so its weight would be lost."""
    seen = Message(role="user", content="You have a key.", weight=0.5)
    with pytest.raises(UserError, match="example 'e', message 1: chat messages cannot represent a trained user"):
        to_openai(Example(id="e", messages=[seen, Message(role="assistant", content="Go.", weight=1)]))


def test_an_openai_reply_without_a_loss_flag_is_trained_on_as_in_xtuner() -> None:
    said: list[dict[str, Any]] = [{"role": role, "content": "x"} for role in ("user", "assistant", "user", "assistant")]
    assert [m.weight for m in from_openai({"messages": said}, "line 1").messages] == [0, 1, 0, 1]
    said[3]["loss"] = False
    assert [m.weight for m in from_openai({"messages": said, "id": 7}, "line 1").messages] == [0, 1, 0, 0]


def test_a_loss_flag_on_a_message_that_is_no_reply_is_ignored() -> None:
    said = [{"role": role, "content": "x", "loss": True} for role in ("system", "user", "assistant")]
    assert [m.weight for m in from_openai({"messages": said}, "line 1").messages] == [0, 0, 1]
    assert [m.weight for m in from_log({"task_num": "7", "revise_log": said}, "line 1").messages] == [0, 0, 1]


def test_a_log_without_messages_is_refused() -> None:
    with pytest.raises(UserError, match="line 1: field 'revise_log': List should have at least 1 item"):
        from_log({"task_num": "7", "revise_log": []}, "line 1")


@pytest.mark.parametrize(
    ("flags", "weights"), [((True, None), [1, 0]), ((None, False), [0, 0]), ((None, None), [1, 1])]
)
def test_an_xtuner_turn_without_a_flag_is_masked_if_another_turn_has_one(
    flags: tuple[bool | None, ...], weights: list[float]
) -> None:
    turns = [{"input": "a", "output": "b"} | ({} if flag is None else {"output_with_loss": flag}) for flag in flags]
    read = from_xtuner({"conversation": turns, "id": 7}, "line 1")
    assert [message.weight for message in read.messages if message.role == "assistant"] == weights


TEXT = st.text(min_size=1, max_size=20)
DIALOGUES = st.tuples(TEXT, st.lists(st.tuples(TEXT, TEXT, st.booleans()), min_size=1, max_size=6)).map(
    lambda given: Example(
        id="e",
        messages=[
            Message(role="system", content=given[0]),
            *(
                message
                for said, reply, learnt in given[1]
                for message in (
                    Message(role="user", content=said),
                    Message(role="assistant", content=reply, weight=float(learnt)),
                )
            ),
        ],
    )
)


@given(DIALOGUES)
def test_any_dialogue_round_trips_through_both_formats(example: Example) -> None:
    assert from_xtuner(json.loads(json.dumps(to_xtuner(example))), "e") == example
    assert from_openai(json.loads(json.dumps(to_openai(example))), "e") == example


def test_xtuner_rows_join_messages_between_replies_and_drop_those_after_the_last_reply() -> None:
    messages = [
        Message(role="user", content="a"), Message(role="user", content="b"),
        Message(role="assistant", content="c", weight=1.0), Message(role="assistant", content="d", weight=0.5),
        Message(role="user", content="e"),
    ]  # fmt: skip
    turns = to_xtuner(Example(id="e", messages=messages))["conversation"]
    assert [(t["input"], t["output"], t["output_with_loss"]) for t in turns] == [("a\nb", "c", True), ("", "d", True)]


def test_replies_at_the_beginning_have_no_xtuner_turn_but_one_after_a_system_prompt_has() -> None:
    answered: list[tuple[Any, str]] = [("user", "a"), ("assistant", "b"), ("assistant", "c")]
    turns = [
        {"system": "", "input": said, "output": reply, "output_with_loss": True}
        for said, reply in (("a", "b"), ("", "c"))
    ]
    hello = {"system": "s", "input": "", "output": "hello", "output_with_loss": True}
    first: list[tuple[Any, str]]
    for first, there in (
        ([("assistant", "hello"), ("assistant", "there")], turns),
        ([("system", "s"), ("assistant", "hello")], [hello, *turns]),
    ):
        messages = [Message(role=role, content=text, weight=role == "assistant") for role, text in first + answered]
        assert to_xtuner(Example(id="e", messages=messages))["conversation"] == there


def test_dialogues_that_xtuner_s_format_cannot_represent_are_refused() -> None:
    for messages, said in (
        ([("user", "a", 0.0)], "has no reply"),
        (
            [("user", "a", 0.0), ("system", "b", 0.0), ("assistant", "c", 1.0)],
            "cannot represent a later system message",
        ),
        ([("user", "a", 1.0), ("assistant", "c", 1.0)], "message 1: XTuner's format cannot represent a trained user"),
    ):
        example = Example(id="e", messages=[Message(role=r, content=c, weight=w) for r, c, w in messages])  # type: ignore[arg-type]
        with pytest.raises(UserError, match=said):
            to_xtuner(example)


def test_errors_in_malformed_rows_name_the_field() -> None:
    for read, row, said in (
        (from_log, {"task_num": "1"}, "l: field 'revise_log'"),
        (from_log, {**ROW, "revise_log": [{"role": "agent", "content": ""}]}, r"field 'revise_log\.0\.role'"),
        (from_xtuner, {"conversation": [{"input": "a"}]}, r"field 'conversation\.0\.output'"),
        (from_openai, {"messages": [{"role": "user"}]}, r"field 'messages\.0\.content'"),
        (from_xtuner, {"conversation": []}, r"field 'conversation'"),
        (from_openai, {"messages": []}, r"field 'messages'"),
    ):
        with pytest.raises(UserError, match=said):
            read(row, "l")
