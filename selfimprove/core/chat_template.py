"""Renders a model's chat template, which somebody else wrote: in Jinja's sandbox, and rendered under limits first.

The sandbox keeps a template from reading files or running commands, but not from looping for ever or from asking for
all memory. So a template that is not ours is rendered once in a process of its own, which the system ends when it has
used ``CPU_SECONDS`` or asks for ``MEMORY`` bytes. A template that is harmless then and harmful with other texts is not
caught.
"""

import json
import resource
import subprocess
import sys
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

CPU_SECONDS = 10
MEMORY = 2 << 30
WALL_SECONDS = 120
LONGEST = 1 << 20
"""Characters of a rendered dialogue of markers, at most."""


def compile_template(source: str) -> Template:
    """Raises: TemplateError: not a Jinja template; RecursionError: nested too deep."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = _raise
    return environment.from_string(source)


def render(template: Template, messages: list[dict[str, str]], generation: bool, special: Mapping[str, str]) -> str:
    """The dialogue as one text.

    Raises:
        ValueError: the template refuses the dialogue, fails on it, or writes far too much.
    """
    try:
        text = template.render(messages=messages, add_generation_prompt=generation, **special)
    except Exception as error:  # a template's arithmetic, types and depth may fail in any way
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from None
    if len(text) > LONGEST:
        raise ValueError(f"it writes {len(text)} characters")
    return text


@lru_cache(maxsize=64)
def is_bounded(source: str, special: tuple[tuple[str, str], ...]) -> bool:
    """Whether the template renders dialogues within the limits; what else is wrong with it is not asked here."""
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
    """In the process with limits: render dialogues of one, three and 41 messages."""
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    source, special = json.load(sys.stdin)
    for length in (1, 3, 41):
        roles: list[Any] = [("user", "assistant")[index % 2] for index in range(length)]
        messages = [{"role": role, "content": f"message {index}"} for index, role in enumerate(roles)]
        try:
            compile_template(source).render(messages=messages, add_generation_prompt=True, **special)
        except MemoryError:
            raise
        except Exception:
            continue  # told where the template is used


def _raise(message: str) -> None:
    raise TemplateError(message)


if __name__ == "__main__":
    _try_out()
