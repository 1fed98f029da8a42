"""The small tokenizer is deterministic, with one token per digit and special token; a model's own is copied."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfimprove.core.chat import ChatFormat
from selfimprove.core.errors import UserError
from selfimprove.core.named_templates import NAMED_TEMPLATES, PLAIN_SPECIAL_TOKENS
from selfimprove.core.records import Message
from selfimprove.models.tokenizer import TokenizerParams, copy_tokenizer, train_tokenizer
from tests.support.tiny import LINES

ROOT = Path(__file__).resolve().parents[2]
TEXTS = [f"{line} Step {n}: {n} + {n * 7} = {n * 8}." for n in range(60) for line in LINES]


def train(folder: Path, **params: object) -> ChatFormat:
    train_tokenizer(TEXTS, TokenizerParams.model_validate({"vocab_size": 400, **params}), folder)
    return ChatFormat.load(folder)


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> ChatFormat:
    return train(tmp_path_factory.mktemp("tokenizer"))


def ids_of(chat: ChatFormat, text: str) -> list[int]:
    return chat.content_ids(Message(role="user", content=text))


def test_training_on_equal_texts_gives_equal_bytes_in_any_process(tmp_path: Path) -> None:
    train(tmp_path / "here")
    program = (
        "import sys, pathlib, tests.models.test_tokenizer as t\n"
        "[t.train(pathlib.Path(sys.argv[1]) / n) for n in ('a', 'b')]"
    )
    for threads in ("1", "4"):
        there = tmp_path / threads
        subprocess.run(
            [sys.executable, "-c", program, str(there)], cwd=ROOT, check=True,
            env={**os.environ, "RAYON_NUM_THREADS": threads, "PYTHONHASHSEED": threads},
        )  # fmt: skip
        for file in (tmp_path / "here").iterdir():
            assert file.read_bytes() == (there / "a" / file.name).read_bytes() == (there / "b" / file.name).read_bytes()


@pytest.mark.parametrize("phrases", [True, False])
def test_every_digit_is_a_separate_token(tmp_path: Path, phrases: bool) -> None:
    chat = train(tmp_path, phrases=phrases)
    vocabulary = json.loads((tmp_path / "tokenizer.json").read_text())["model"]["vocab"]
    assert [token for token in vocabulary if len(token) > 1 and any(c.isdigit() for c in token)] == []
    assert [chat.decode([i]) for i in ids_of(chat, "120453")] == list("120453")


def test_role_markers_and_end_of_turn_are_one_id_each_and_come_first(chat: ChatFormat) -> None:
    ids = chat.encode([Message(role="user", content=""), Message(role="assistant", content="")]).ids
    names = dict(enumerate(PLAIN_SPECIAL_TOKENS))
    assert [names[i] for i in ids] == ["<|user|>", "<|end|>", "<|assistant|>", "<|end|>"]
    assert (names[chat.pad_id], names[chat.end_id]) == ("<|pad|>", "<|end|>")
    assert len(PLAIN_SPECIAL_TOKENS) + 256 < chat.vocab_size <= 400


def test_tokens_span_spaces_only_with_phrases(tmp_path: Path) -> None:
    with_phrases, without = train(tmp_path / "a"), train(tmp_path / "b", phrases=False)
    assert any(" " in with_phrases.decode([i]).strip() for i in range(400))
    assert not any(" " in without.decode([i]).strip() for i in range(400))
    assert len(ids_of(with_phrases, LINES[4])) < len(ids_of(without, LINES[4]))


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_decodes_to_itself(chat: ChatFormat, text: str) -> None:
    assert chat.decode(ids_of(chat, text)) == text


def test_transformers_loads_the_folder_and_gives_the_same_ids(tmp_path: Path, chat: ChatFormat) -> None:
    train(tmp_path)
    from transformers import AutoTokenizer

    other = AutoTokenizer.from_pretrained(tmp_path)
    messages = [{"role": "user", "content": LINES[0]}, {"role": "assistant", "content": LINES[1]}]
    mine = chat.encode([Message(**message) for message in messages]).ids  # type: ignore[arg-type]
    assert other.apply_chat_template(messages, return_dict=False) == mine
    assert (other.pad_token_id, other.eos_token_id) == (chat.pad_id, chat.end_id)


def test_a_models_own_tokenizer_is_copied_and_a_named_template_is_stored_with_it(tmp_path: Path) -> None:
    train(tmp_path / "model")
    copy_tokenizer(tmp_path / "model", tmp_path / "same", None)
    for file in (tmp_path / "model").iterdir():
        assert (tmp_path / "same" / file.name).read_bytes() == file.read_bytes()
    mine = tmp_path / "mine.jinja"
    mine.write_text(NAMED_TEMPLATES["plain"] + " ")
    for template in ("zephyr", str(mine)):
        copy_tokenizer(tmp_path / "model", tmp_path / "other", template)
        messages = [Message(role="user", content="Hi")]
        asked = ChatFormat.load(tmp_path / "model", template).encode(messages, add_generation_prompt=True)
        assert ChatFormat.load(tmp_path / "other").encode(messages, add_generation_prompt=True) == asked
    with pytest.raises(UserError, match="neither one of"):
        copy_tokenizer(tmp_path / "model", tmp_path / "never", "nosuch")
    assert not (tmp_path / "never").exists()
