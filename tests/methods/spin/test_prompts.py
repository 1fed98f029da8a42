"""How questions and rounds are rendered: the wrapper, few-shot text, and the template that joins messages."""

import json
from pathlib import Path
from typing import Any

import pytest

from selfimprove.core.chat import ChatFormat
from selfimprove.core.errors import UserError
from selfimprove.core.named_templates import NAMED_TEMPLATES
from selfimprove.core.records import Message
from selfimprove.envs.qa.base import TASKS
from selfimprove.envs.qa.experts import Round
from selfimprove.methods.spin.parse import STOP
from selfimprove.methods.spin.prompts import alpaca, check_template, cue, few_shot_text, opening, written
from selfimprove.training.encode import EncodeCounters, encode_example
from tests.methods.spin.episodes import EXPERT, QUESTION, played
from tests.support.tiny import train_tokenizer

SAMPLE = json.loads(Path(__file__).with_name("readme_sample.json").read_text())["3687"]


def test_the_alpaca_wrapper_equals_the_readme_sample_byte_for_byte() -> None:
    question = SAMPLE["traj_by_line"][3]
    assert alpaca(question) == "\n".join(SAMPLE["traj_by_line"][:6]) + "\n"
    assert SAMPLE["traj"].startswith(alpaca(question) + "Thought:")
    assert alpaca(f"{question} \t\n") == alpaca(question)  # FireAct strips white space after the question, too


def test_the_question_format_has_the_bare_question_as_in_fireact() -> None:
    assert opening("Where?", "question")[0].content == "Where?\n"
    assert opening("Question: Why?\nA. So", "question")[0].content == "Question: Why?\nA. So\n"  # MMLU's


def test_an_experts_rendered_text_is_the_original_training_text_without_its_terminal_line(
    react: ChatFormat,
) -> None:
    messages = [*opening(QUESTION.question, "alpaca"), *written(EXPERT.rounds, "alpaca")]
    text = "".join(message.content for message in messages)
    lines = [
        part
        for known in EXPERT.rounds
        for part in (f"Thought: {known.thought}", f"Action: {known.action}", f"Observation: {known.observation}")
    ]
    assert text == alpaca(QUESTION.question) + "\n".join(lines[:-1])
    ids = react.encode(messages).ids
    assert ids.count(react.end_id) == 1 == ids.index(react.end_id) - len(ids) + 2
    assert react.decode(ids) == text


@pytest.mark.parametrize("form", ["alpaca", "question"])
def test_only_the_prompt_and_observation_texts_are_masked(react: ChatFormat, form: Any) -> None:
    """Masked from after the colon to before the newline of the next cue; the literal ``Observation:`` is trained."""
    from selfimprove.core.records import Example

    messages = [*opening(QUESTION.question, form), *written(EXPERT.rounds, form)]
    encoded = encode_example(Example(id="e", messages=messages), react, 10**6, EncodeCounters())
    assert encoded is not None
    assert set(encoded.token_weights) == {0.0, 1.0}
    learnt = [token for token, weight in zip(encoded.ids, encoded.token_weights, strict=True) if weight]
    masked = [token for token, weight in zip(encoded.ids, encoded.token_weights, strict=True) if not weight]
    want = "".join(
        f"{'Thought:' if not number else chr(10) + 'Thought:'} {known.thought}\nAction: {known.action}"
        + (STOP if known.observation else "")
        for number, known in enumerate(EXPERT.rounds)
    )
    assert react.decode(learnt) == want
    assert learnt[-1] == react.end_id
    assert react.decode(masked) == opening(QUESTION.question, form)[0].content + "".join(
        f" {known.observation}" for known in EXPERT.rounds if known.observation
    )


def test_the_policys_prompt_is_a_prefix_of_its_training_sequence(react: ChatFormat) -> None:
    episode = played()
    for number in range(3):
        seen = [*episode.prompt, *episode.messages[: 4 * number], *cue("alpaca", number)]
        asked = react.encode(seen, add_generation_prompt=True).ids
        whole = react.encode([*episode.prompt, *episode.messages]).ids
        assert whole[: len(asked)] == asked


def test_few_shot_text_is_off_or_the_tasks_default_or_a_file(tmp_path: Path) -> None:
    assert few_shot_text("off", "hotpotqa") == ""
    own = tmp_path / "own.txt"
    own.write_text("Question: x\nThought: y\nAction: finish[z]\n\n")
    assert few_shot_text(str(own), "hotpotqa") == "Question: x\nThought: y\nAction: finish[z]"
    for task in TASKS[:-1]:  # the last, chat, is plain SPIN, which has no few-shot text
        text = few_shot_text("default", task)
        rounds = text.split("\nAction: ")[1:]
        assert text.count("\nQuestion: ") == (task == "mmlu")  # MMLU's questions begin with "Question:" themselves
        assert all(part.startswith(("search[", "finish[")) for part in rounds)
        assert rounds[-1].startswith("finish[")


def test_a_few_shot_file_may_begin_with_a_byte_order_mark_but_must_not_be_empty(tmp_path: Path) -> None:
    own = tmp_path / "own.txt"
    own.write_text("Question: x\n", encoding="utf-8-sig")
    assert few_shot_text(str(own), "hotpotqa") == "Question: x"
    own.write_text(" \n")
    with pytest.raises(UserError, match=r"own\.txt is empty; name another file"):
        few_shot_text(str(own), "hotpotqa")


@pytest.mark.parametrize(
    ("choice", "words"),
    [("no/such.txt", "no/such.txt"), ("a\0", "cannot be read as text"), ("default", "has no worked episodes")],
)
def test_a_missing_few_shot_file_or_default_is_rejected(choice: str, words: str) -> None:
    with pytest.raises(UserError, match=words):
        few_shot_text(choice, "chess")


def test_few_shot_text_precedes_the_complete_wrapper_or_is_the_system_turn() -> None:
    """The original cuts as many characters off the start of the trajectory as the few-shot text has."""
    flat = opening("Q?", "alpaca", "Question: x\n")[0].content
    assert flat == f"Question: x\n\n{alpaca('Q?')}"
    chat = opening("Q?", "chat", "Question: x\n")
    assert [(m.role, m.content) for m in chat] == [("system", "Question: x"), ("user", "Q?")]


def test_an_expert_in_chat_format_alternates_turns_and_ends_with_the_assistant() -> None:
    messages = written(EXPERT.rounds, "chat")
    assert [m.role for m in messages] == ["assistant", "user", "assistant", "user", "assistant"]
    assert messages[0].content == "Thought: I need the author.\nAction: search[The Silver Gate]"
    assert messages[1].content == f"Observation: {EXPERT.rounds[0].observation}"


def test_an_experts_observation_is_joined_to_one_line_like_the_policys() -> None:
    rounds = [
        Round(thought="t", action="search[x]", observation="two\n lines "),
        Round(thought="u", action="finish[y]"),
    ]
    assert written(rounds, "alpaca")[2] == Message(role="user", content=" two lines")


@pytest.mark.parametrize(
    ("form", "template", "fits"),
    [
        ("alpaca", "react", True), ("question", "react", True), ("alpaca", "zephyr", False), ("alpaca", "plain", False),
        ("question", "text", False), ("chat", "react", False), ("reply", "react", False), ("chat", "zephyr", True),
    ],
)  # fmt: skip
def test_a_chat_template_that_does_not_suit_the_prompt_format_is_rejected(
    tmp_path: Path, form: Any, template: str, fits: bool
) -> None:
    train_tokenizer(tmp_path / "model")
    (tmp_path / "model" / "chat_template.jinja").write_text(NAMED_TEMPLATES[template])
    if fits:
        check_template(tmp_path / "model", form)
    else:
        with pytest.raises(UserError, match=r"spin.prompt.format.*base.spin.chat_template"):
            check_template(tmp_path / "model", form)
