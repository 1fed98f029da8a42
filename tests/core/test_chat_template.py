"""Untrusted chat templates: every failure is reported in one sentence, within bounded time and memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from selfimprove.core import chat_template
from selfimprove.core.chat import ChatFormat
from selfimprove.core.errors import UserError
from selfimprove.core.named_templates import NAMED_TEMPLATES
from selfimprove.core.records import Message
from tests.support.macos import without_address_space_limits

PLAIN = NAMED_TEMPLATES["plain"]


def refused(tokenizer: Path, tmp_path: Path, template: str) -> str:
    file = tmp_path / "template.jinja"
    file.write_text(template)
    with pytest.raises(UserError) as caught:
        ChatFormat.load(tokenizer, str(file))
    assert str(caught.value).endswith("name another with the param chat_template.")
    return str(caught.value)


@pytest.mark.parametrize(
    ("attack", "said"),
    [
        ("{{ 1 / 0 }}", "refuses the dialogue (division by zero)"),
        ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "refuses the dialogue (maximum recursion depth"),
        ("{{ messages.nothing.there }}", "refuses the dialogue"),
        ("{{ 'x' * 2000000 }}", "refuses the dialogue (it writes 2"),
        ("{% if %}", "is not a Jinja template"),
    ],
)
def test_a_template_that_fails_is_refused_with_the_reason(
    tokenizer: Path, tmp_path: Path, attack: str, said: str
) -> None:
    assert said in refused(tokenizer, tmp_path, PLAIN + attack)


@pytest.mark.parametrize(
    "attack",
    [
        "{% set r = range(99999) | list %}{% for i in r %}{% for j in r %}{% endfor %}{% endfor %}",
        "{{ 'x' * 10 ** 11 }}",
        "{{ 10 ** (10 ** 9) }}",
    ],
    ids=["loop", "memory", "arithmetic"],
)
def test_a_template_that_never_ends_or_takes_all_memory_is_refused(
    tokenizer: Path, tmp_path: Path, attack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat_template, "WALL_SECONDS", 3)
    assert "takes more than 10 s or 2 GiB for a few short messages" in refused(tokenizer, tmp_path, PLAIN + attack)


def test_a_working_template_file_is_accepted(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "own.jinja").write_text(PLAIN + "\n")
    assert ChatFormat.load(tokenizer, str(tmp_path / "own.jinja")).end_text == "<|end|>"


def test_a_template_is_tried_out_also_where_address_space_cannot_be_limited(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_address_space_limits(tmp_path, monkeypatch)
    (tmp_path / "own.jinja").write_text(PLAIN + "\n\n")
    assert ChatFormat.load(tokenizer, str(tmp_path / "own.jinja")).end_text == "<|end|>"


def test_a_template_may_use_the_extensions_of_transformers(tokenizer: Path, tmp_path: Path) -> None:
    turn = "{% generation %}{{ m.content }}<|end|>{% endgeneration %}{% continue %}unreachable"
    extended = (
        "{% for m in messages %}{% if m.role == 'assistant' %}" + turn + "{% endif %}"
        "{{ m.content | tojson(ensure_ascii=false) }}{% endfor %}"
    )
    rendered = chat_template.render(
        chat_template.compile_template(extended),
        [{"role": "user", "content": "<ä>"}, {"role": "assistant", "content": "b"}], False, {},
    )  # fmt: skip
    assert rendered == '"<ä>"b<|end|>'
    content = "{{ message['content'] }}"
    assert content in PLAIN
    marked = PLAIN.replace(content, "{% generation %}" + content + "{% endgeneration %}")
    (tmp_path / "own.jinja").write_text(marked)
    assert ChatFormat.load(tokenizer, str(tmp_path / "own.jinja")).end_text == "<|end|>"


def test_a_template_is_told_that_there_are_no_tools_and_no_documents(tokenizer: Path, tmp_path: Path) -> None:
    asks = "{% if tools is not none or documents is not none %}{{ tools | length }} tools{% endif %}"
    (tmp_path / "own.jinja").write_text(asks + PLAIN)
    said = [Message(role="user", content="Hi")]
    assert ChatFormat.load(tokenizer, str(tmp_path / "own.jinja")).encode(said) == ChatFormat.load(tokenizer).encode(
        said
    )


def test_a_template_is_given_no_clock_so_that_prompts_do_not_depend_on_the_day(tokenizer: Path, tmp_path: Path) -> None:
    needs = "{% if messages[0].content == strftime_now('%Y') %}{% endif %}"
    assert "'strftime_now' is undefined" in refused(tokenizer, tmp_path, needs + PLAIN)
    (tmp_path / "own.jinja").write_text("{% if strftime_now is defined %}" + needs + "{% endif %}" + PLAIN)
    assert ChatFormat.load(tokenizer, str(tmp_path / "own.jinja")).end_text == "<|end|>"
