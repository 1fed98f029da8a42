"""Labels of listed actions, so that one token acts (``interface.EnumeratedEnv``).

A state of DangerousTaxi (start 121, one action later) in its two parts, ``pre`` and, from the heading on, ``post``::

    You have already completed the following actions:
    move north

    --- Current State ---

    +---------+
    |P: | : : |
    |T: | : : |
    | : : : : |
    | | : | : |
    |D| : | : |
    +---------+
    The actions you can take now is:
    Action 0: move south
    Action 1: move north
    ...

A reflection model reads ``pre`` only, a policy ``pre``, the reflection and ``post``, and answers with one label
(docs/reflect-rl.md, L2). Rewards are given as costs, as in the paper: c = -r.
"""

import string
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from selfimprove.core.errors import UserError
from selfimprove.envs.interface import EnumeratedEnv

LabelSet = Literal["full", "single"]
LABELS: Mapping[LabelSet, tuple[str, ...]] = {
    "full": (*map(str, range(200)), *string.ascii_letters),
    "single": (*string.digits, *string.ascii_letters),
}
"""What actions may be called: the original's 252, each one token of GPT-2; or the 62 that are one character."""


def oracle_label(env: EnumeratedEnv) -> str | None:
    """The label, as listed now, of the oracle's next command; None at the end or where there is no path."""
    way = env.oracle()
    return next((label for label, command in env.commands().items() if way and command == way[0]), None)


def label_ids(labels: Sequence[str], encode: Callable[[str], Sequence[int]], offer: LabelSet = "single") -> list[int]:
    """The token of every label: the rows that a shrunk head keeps (docs/reflect-rl.md, L4 and L6).

    Raises:
        UserError: some labels are not one token, or share one (names them, and offers the smaller set).
    """
    ids = [list(encode(label)) for label in labels]
    shared = {tuple(i) for i in ids if ids.count(i) > 1}
    wrong = [label for label, i in zip(labels, ids, strict=True) if len(i) != 1 or tuple(i) in shared]
    if wrong:
        shown = ", ".join(wrong[:5]) + (f" and {len(wrong) - 5} more" if len(wrong) > 5 else "")
        raise UserError(
            f"reflect_rl: the tokenizer does not encode every label as a distinct single token ({shown}); set "
            f"reflect_rl.env.labels: {offer} (the {len(LABELS[offer])} one-character labels), or use another base "
            "model."
        )
    return [i[0] for i in ids]


class Spelling(NamedTuple):
    """Whose actions, and what they may be called."""

    name: str
    labels: tuple[str, ...]
