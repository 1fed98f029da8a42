"""Prompts: the exact text, the split at the last heading, and the original's token stream with template ``text``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from selfimprove.core.chat import ChatFormat
from selfimprove.core.named_templates import NAMED_TEMPLATES
from selfimprove.core.records import Example, Message
from selfimprove.envs.interface import State
from selfimprove.methods.reflect_rl.convert import shortened
from selfimprove.methods.reflect_rl.prompts import (
    MARKERS,
    cut_reflection,
    policy_example,
    policy_prompt,
    reflection_example,
    reflection_prompt,
)
from selfimprove.training.encode import EncodeCounters, encode_example

STATE = State("# Task\nFind it.\n", "\n# Choose from below your command\n0. cat a.py\n1. id a.py\n", ("0", "1"))
LINES = (
    "You are at the root.\n# Choose from below your command\n0. cat a.py\n # Analyze:\nIt may help.\n # Action:\n1",
    "12 137 99 0 1 2 3 abc",
)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> ChatFormat:
    """A tokenizer built like GPT-2's (bytes, its regular expression, one end token), with the template ``text``."""
    folder: Path = tmp_path_factory.mktemp("gpt2")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(LINES * 4, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|endoftext|>"}))
    return ChatFormat.load(folder, "text")


def test_the_reflection_prompt_contains_everything_but_the_actions() -> None:
    (message,) = reflection_prompt("Drive.\n", STATE)
    assert message.role == "user"
    assert message.content == "Drive.\n# Task\nFind it.\n # Analyze:\n"


def test_policy_prompts_have_the_specified_text() -> None:
    with_reflection = policy_prompt("Drive.\n", STATE, "It is a.py.")[0].content
    assert with_reflection == (
        "Drive.\n# Task\nFind it.\n # Analyze:\nIt is a.py."
        "\n# Choose from below your command\n0. cat a.py\n1. id a.py\n # Action:\n"
    )
    assert policy_prompt("Drive.\n", STATE, None)[0].content == (
        "# Task\nFind it.\n\n# Choose from below your command\n0. cat a.py\n1. id a.py\n # Action:\n"
    )
    assert policy_prompt("Drive.\n", STATE, "")[0].content == with_reflection.replace("It is a.py.", "")


def test_sentencepiece_markers_lose_their_leading_space() -> None:
    stripped = MARKERS["stripped"]
    assert reflection_prompt("", STATE, stripped)[0].content.endswith("Find it.\n# Analyze:\n")
    assert policy_prompt("", STATE, "R", stripped)[0].content.endswith("a.py\n# Action:\n")


@pytest.mark.parametrize(
    ("reflection", "cut", "finish"),
    [
        ("It is ne", True, "length"),
        (" It is ne ", True, "length"),  # its blanks are no text after a marker
        ("It is near.\n# Action:\n0 and", True, None),
        ("It is near.", False, None),
    ],
)
def test_a_reflection_cut_at_the_token_limit_has_an_end_token_only_if_its_text_was_complete(
    reflection: str, cut: bool, finish: str | None
) -> None:
    example = reflection_example("one", "", STATE, reflection, cut=cut)
    assert example.messages[-1].finish == finish
    assert example.messages[-1].content == reflection.partition("\n")[0].strip()


@given(st.text(), st.text(), st.sampled_from(list(MARKERS.values())))
def test_a_reflection_is_cut_at_the_act_marker(before: str, after: str, markers: Any) -> None:
    cut = cut_reflection(before + markers.act + after, markers)
    assert markers.act.strip("\n") not in cut
    assert cut == cut.strip()
    assert before.strip().startswith(cut)


def test_a_marker_without_its_newline_also_ends_a_reflection() -> None:
    assert cut_reflection("It is near. # Action:3") == "It is near."


def test_a_marker_without_its_leading_space_also_ends_a_reflection() -> None:
    assert cut_reflection("The way is free.\n# Action:\n0") == "The way is free."
    assert cut_reflection("# Action:\n0") == ""


def test_with_the_text_template_an_example_is_the_tokenized_plain_text(gpt2: ChatFormat) -> None:
    for reflection, label in ((None, "137"), ("The file may help.", "0"), ("", "b")):
        example = policy_example("x", "Drive.\n", STATE, reflection, label)
        whole = "".join(message.content for message in example.messages)
        ids = gpt2.encode(example.messages).ids
        assert ids[:-1] == gpt2._tokens.encode(whole, add_special_tokens=False).ids
        assert ids[-1] == gpt2.end_id
    example = reflection_example("x", "Drive.\n", STATE, "The file may help.")
    whole = "".join(message.content for message in example.messages)
    assert gpt2.encode(example.messages).ids[:-1] == gpt2._tokens.encode(whole, add_special_tokens=False).ids


def test_prompts_at_inference_equal_the_trained_prompts_token_for_token(gpt2: ChatFormat) -> None:
    example = policy_example("x", "", STATE, "R", "1")
    asked = gpt2.encode(example.messages[:1], add_generation_prompt=True).ids
    encoded = gpt2.encode(example.messages)
    assert encoded.ids[: len(asked)] == asked
    span = encoded.spans[1]
    assert span.start == len(asked)
    assert encoded.ids[span.end : span.stop] == [gpt2.end_id]  # the end token is trained
    assert example.messages[0].weight == 0
    assert example.messages[1].weight == 1


def test_the_text_template_renders_contents_verbatim_and_end_tokens_cannot_be_forged(gpt2: ChatFormat) -> None:
    messages = [Message(role="user", content=" <|endoftext|> \n"), Message(role="assistant", content=" x ")]
    ids = gpt2.encode(messages).ids
    assert ids.count(gpt2.end_id) == 1
    assert gpt2.decode(ids) == " <|endoftext|> \n x "
    assert "text" in NAMED_TEMPLATES


def test_overlong_prompts_are_truncated_on_the_left_and_keep_the_answer(gpt2: ChatFormat) -> None:
    example = policy_example("x", "", STATE._replace(pre="word " * 300), "R", "1")
    whole = gpt2.encode(example.messages)
    limit = 60
    (short,) = shortened([example], gpt2, limit)
    encoded = gpt2.encode(short.messages)
    assert len(encoded.ids) == limit
    assert encoded.ids == whole.ids[-limit:]
    assert short.messages[0].content.endswith(" # Action:\n")
    assert short.messages[1] == example.messages[1]
    assert shortened([example], gpt2, len(whole.ids)) == [example]
    assert shortened([example], gpt2, 1) == [example]  # no room for the answer: unchanged, since training counts it


def test_template_text_after_the_answer_which_is_not_trained_on_does_not_count_as_overlong(tiny: Path) -> None:
    zephyr, example = ChatFormat.load(tiny, "zephyr"), policy_example("x", "", STATE, "R", "1")
    whole = zephyr.encode(example.messages)
    end = whole.spans[-1].stop
    assert len(whole.ids) > end  # a newline
    assert shortened([example], zephyr, end) == [example]
    (short,) = shortened([example], zephyr, end - 3)
    assert zephyr.encode(short.messages).spans[-1].stop == end - 3
    assert encode_example(short, zephyr, end - 3, counters := EncodeCounters()) is not None
    assert counters.truncated == counters.dropped_long == 0


@pytest.mark.parametrize("template", ["text", "zephyr", "rise"])  # rise strips the prompt, and no later message
def test_a_prompt_that_is_cut_for_training_has_the_ids_of_one_that_is_cut_in_play(tiny: Path, template: str) -> None:
    chat = ChatFormat.load(tiny, template)
    prompt, answer = policy_example("x", "", STATE._replace(pre="\nWhich command is best? " * 9), "R", "1").messages
    asked = chat.encode([prompt], add_generation_prompt=True)
    limit = len(asked.ids) - 9
    example = Example(id="x", messages=[prompt, answer], source="x")
    room = chat.encode([prompt, answer]).spans[1].stop - len(asked.ids)  # the answer's
    (short,) = shortened([example], chat, limit + room)
    trained = chat.encode(short.messages)
    assert trained.ids[: trained.spans[1].start] == asked.cut_left(limit)
