"""Turns under tokenizers that put a space before every text (Llama 2, Mistral): the ids are those of the whole text."""

from __future__ import annotations

import string

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from selfimprove.core.chat import ChatFormat
from selfimprove.core.chat_template import compile_template, render
from selfimprove.core.records import Message
from tests.core.test_chat import TEMPLATES

NAMES = {"bos_token": "<s>", "eos_token": "</s>"}
ASKED, REPLIED, AGAIN = "Who?", "Tom.", "Try again."


@pytest.fixture(params=["prepend", "always", "first"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    """Each character is a token, and so are a space and a letter that begins a word."""
    words = [f"▁{letter}" for letter in string.ascii_letters]
    pieces = ["<unk>", "<s>", "</s>", "▁", *string.printable, *words]
    made = Tokenizer(
        models.BPE({piece: i for i, piece in enumerate(pieces)}, [("▁", word[1]) for word in words], unk_token="<unk>")
    )
    if request.param == "prepend":
        made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    else:
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=request.param, split=False)
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    return made


def spelled(tokenizer: Tokenizer, template: str, messages: list[Message], *, asks: bool = False) -> list[str]:
    """The tokens of the whole text of a dialogue."""
    turns = [{"role": message.role, "content": message.content} for message in messages]
    text = render(compile_template(template), turns, asks, NAMES)
    return list(tokenizer.encode(text, add_special_tokens=False).tokens)


def encoded(tokenizer: Tokenizer, chat: ChatFormat, messages: list[Message], *, asks: bool = False) -> list[str]:
    ids = chat.encode(messages, add_generation_prompt=asks).ids
    return [str(tokenizer.id_to_token(token)) for token in ids]


@pytest.mark.parametrize("name", ["zephyr", "rise", "llama2", "mistral"])
def test_a_prompt_has_the_tokens_of_its_whole_text(name: str, tokenizer: Tokenizer) -> None:
    template = TEMPLATES[name][0]
    chat = ChatFormat(tokenizer, template, NAMES, "here")
    user = Message(role="user", content=ASKED)
    assert encoded(tokenizer, chat, [user], asks=True) == spelled(tokenizer, template, [user], asks=True)
    # A generated reply keeps its ids, and the next question follows it as in the whole text.
    vocabulary = tokenizer.get_vocab()
    ids = [vocabulary[token] for token in ("▁T" if name == "llama2" else "T", "o", "m", ".")]
    dialogue = [user, Message(role="assistant", content=REPLIED, token_ids=ids), Message(role="user", content=AGAIN)]
    text = spelled(tokenizer, template, dialogue, asks=True)
    if name == "llama2":  # its template writes a space before the end token, which a model need not
        text.pop(text.index("</s>") - 1)
    assert encoded(tokenizer, chat, dialogue, asks=True) == text


def test_a_reply_after_the_templates_own_space_gets_no_second_one(tokenizer: Tokenizer) -> None:
    template = TEMPLATES["llama2"][0]
    chat = ChatFormat(tokenizer, template, NAMES, "here")
    question = Message(role="user", content=ASKED)
    dialogue = [question, Message(role="assistant", content=REPLIED), Message(role="user", content=AGAIN)]
    assert encoded(tokenizer, chat, dialogue) == spelled(tokenizer, template, dialogue)


def test_a_system_message_and_a_question_have_the_tokens_of_the_whole_text(tokenizer: Tokenizer) -> None:
    template = TEMPLATES["zephyr"][0]
    chat = ChatFormat(tokenizer, template, NAMES, "here")
    for system in ("", "Be brief."):
        prompt = [Message(role="system", content=system), Message(role="user", content=ASKED)]
        assert encoded(tokenizer, chat, prompt, asks=True) == spelled(tokenizer, template, prompt, asks=True)


@pytest.mark.parametrize("name", ["llama2", "mistral"])
def test_a_question_after_a_special_token_and_a_space_has_the_tokens_of_the_whole_text(
    name: str, tokenizer: Tokenizer
) -> None:
    tokenizer.add_special_tokens(["[INST]", "[/INST]"])  # as in Mistral 7B since its version 0.3
    template = TEMPLATES[name][0]
    chat = ChatFormat(tokenizer, template, NAMES, "here")
    prompt = [Message(role="user", content=ASKED)]
    assert encoded(tokenizer, chat, prompt, asks=True) == spelled(tokenizer, template, prompt, asks=True)


@pytest.mark.parametrize("name", ["zephyr", "rise", "llama2", "mistral"])
def test_an_empty_question_keeps_the_spaces_around_it(name: str, tokenizer: Tokenizer) -> None:
    template = TEMPLATES[name][0]
    chat = ChatFormat(tokenizer, template, NAMES, "here")
    prompt = [Message(role="user", content="")]
    assert encoded(tokenizer, chat, prompt, asks=True) == spelled(tokenizer, template, prompt, asks=True)
