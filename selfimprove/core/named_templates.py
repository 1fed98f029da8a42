"""The chat templates that params refer to by name, and where the text of a model's template comes from."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from selfimprove.core.errors import UserError

NAMED_TEMPLATES = {
    # For tokenizers trained in this repository: one special token per role and one that ends a turn.
    "plain": (
        "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    ),
    "zephyr": (
        "{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}{{ eos_token }}\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
    ),
    # The released RISE trainer's, for any model: a BOS and zephyr's turns; the first message is stripped and labelled
    # "system" although its role is "user" (docs/rise.md, R5).
    "rise": (
        "{{ bos_token }}{% for message in messages %}<|{{ 'system' if loop.first else message['role'] }}|>\n"
        "{{ message['content'] | trim if loop.first else message['content'] }}{{ eos_token }}\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
    ),
    # One growing text, as ReAct agents read it: nothing between the messages, one EOS after the policy's last message
    # (docs/spin.md, S11 and S32). Consecutive assistant messages are allowed, with different weights.
    "react": (
        "{{ bos_token }}{% for message in messages %}{{ message['content'] }}{% endfor %}"
        "{% if messages[-1]['role'] == 'assistant' and not add_generation_prompt %}{{ eos_token }}{% endif %}"
    ),
    # No roles: the original Reflect-RL's plain completions, for any model, plus an end token, which the original's
    # training data lacks (docs/reflect-rl.md, L14).
    "text": (
        "{% for message in messages %}{{ message['content'] }}"
        "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{% endfor %}"
    ),
}
"""Values of ``chat_template`` with a built-in template; any other value is a file, and null is the model's own."""

PLAIN_SPECIAL_TOKENS = ("<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>")


def template_source(folder: Path, config: Mapping[str, Any], template: str | None) -> str:
    """The text of a named template, of a template file, or, for None, of the model's own template.

    ``config``: the content of the model folder's ``tokenizer_config.json``.

    Raises:
        UserError: there is no such template, the model has none, or its file cannot be read.
    """
    if template in NAMED_TEMPLATES:
        return NAMED_TEMPLATES[template]
    if template is not None:
        if not os.path.isfile(template):  # unlike pathlib's, False for a template's text, too long for a path
            names = ", ".join(NAMED_TEMPLATES)
            raise UserError(f"chat_template: {template!r} is neither one of {names} nor a file; name one that exists.")
        return _read_template(Path(template))
    own = folder / "chat_template.jinja"
    if own.is_file():
        return _read_template(own)
    inline = config.get("chat_template")
    if isinstance(inline, list):  # several templates, for example one for tools
        named = {one.get("name"): one.get("template") for one in inline if isinstance(one, dict)}
        inline = named.get("default")
    if isinstance(inline, str):
        return inline
    raise UserError(
        f"{folder} has no chat template; name one with the param chat_template "
        f"({', '.join(NAMED_TEMPLATES)} or a Jinja file)."
    )


def _read_template(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file} is not a chat template ({error}); restore it from its source.") from None
