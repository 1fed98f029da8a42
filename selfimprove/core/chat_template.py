"""Renders a model's chat template, which is untrusted: in Jinja's sandbox, after a trial under resource limits.

The sandbox keeps a template from reading files or running commands, but not from looping forever or exhausting memory.
A template that is not one of ours is therefore rendered once in a separate process, limited to ``CPU_SECONDS`` of CPU
time and (not on macOS) ``MEMORY`` bytes of address space. A template that passes and misbehaves on other texts is not
caught.
"""

import json
import resource
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

CPU_SECONDS = 10
MEMORY = 2 << 30
WALL_SECONDS = 120
LONGEST = 1 << 20
"""Maximum number of characters in a rendered dialogue of markers."""


def compile_template(source: str) -> Template:
    """Raises: TemplateError: not a Jinja template; RecursionError: nested too deeply."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
    )
    environment.globals["raise_exception"] = _raise
    environment.filters["tojson"] = _to_json
    return environment.from_string(source)


def render(template: Template, messages: list[dict[str, str]], generation: bool, special: Mapping[str, str]) -> str:
    """The dialogue as one text, without tools and documents, which are none for a template, as in transformers.

    Raises:
        ValueError: the template refuses the dialogue, fails on it, or writes more than ``LONGEST`` characters.
    """
    try:
        text = template.render(
            messages=messages, add_generation_prompt=generation, tools=None, documents=None, **special
        )
    except Exception as error:  # arithmetic, types and recursion in a template can raise anything
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from None
    if len(text) > LONGEST:
        raise ValueError(f"it writes {len(text)} characters")
    return text


@lru_cache(maxsize=64)
def is_bounded(source: str, special: tuple[tuple[str, str], ...]) -> bool:
    """Whether the template renders dialogues within the limits; other faults are reported where it is used."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "selfimprove.core.chat_template"],
            input=json.dumps([source, dict(special)]),
            text=True,
            timeout=WALL_SECONDS,
            check=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def _try_out() -> None:
    """Entry point of the limited process: render dialogues of 1, 3 and 41 messages."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    with suppress(ValueError):  # macOS does not limit it, and elsewhere a lower limit may be in force
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    source, special = json.load(sys.stdin)
    for length in (1, 3, 41):
        roles: list[Any] = [("user", "assistant")[index % 2] for index in range(length)]
        messages = [{"role": role, "content": f"message {index}"} for index, role in enumerate(roles)]
        try:
            compile_template(source).render(
                messages=messages, add_generation_prompt=True, tools=None, documents=None, **special
            )
        except MemoryError:
            raise
        except Exception:
            continue  # reported where the template is used


class _Generation(Extension):
    """``{% generation %}…{% endgeneration %}``, which marks what the model writes, is rendered as its content."""

    tags = {"generation"}  # noqa: RUF012 (as Jinja declares it)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    """As in transformers: Jinja's own filter escapes HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _raise(message: str) -> None:
    raise TemplateError(message)


if __name__ == "__main__":
    _try_out()
