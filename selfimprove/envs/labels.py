"""Labels of listed actions, so that an action is a single token (``interface.EnumeratedEnv``).

A state of DangerousTaxi (start 121, after one action) in its two parts, ``pre`` and, from the heading on, ``post``::

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

The reflection model reads only ``pre``. The policy reads ``pre``, the reflection and ``post``, and answers with one
label (docs/reflect-rl.md, L2). Rewards are expressed as costs, as in the paper: c = -r.
"""

import string
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

from selfimprove.core.errors import UserError, some
from selfimprove.envs.interface import EnumeratedEnv

LabelSet = Literal["full", "single"]
LABELS: Mapping[LabelSet, tuple[str, ...]] = {
    "full": (*map(str, range(200)), *string.ascii_letters),
    "single": (*string.digits, *string.ascii_letters),
}
"""The sets of labels: the original's 252, each a single GPT-2 token; or the 62 of one character."""


def oracle_label(env: EnumeratedEnv) -> str | None:
    """The current label of the oracle's next command; None at the end or if there is no path."""
    way = env.oracle()
    return next((label for label, command in env.commands().items() if way and command == way[0]), None)


def label_ids(labels: Sequence[str], encode: Callable[[str], Sequence[int]], offer: LabelSet = "single") -> list[int]:
    """The token id of every label: the rows that a reduced output head keeps (docs/reflect-rl.md, L4 and L6).

    Raises:
        UserError: some labels are not a single token, or share one (names them, and suggests the smaller set).
    """
    ids = [list(encode(label)) for label in labels]
    shared = {tuple(i) for i in ids if ids.count(i) > 1}
    wrong = [label for label, i in zip(labels, ids, strict=True) if len(i) != 1 or tuple(i) in shared]
    if wrong:
        raise UserError(
            f"reflect_rl: the tokenizer does not encode every label as a distinct single token ({some(wrong)}); set "
            f"reflect_rl.env.labels: {offer} (the {len(LABELS[offer])} one-character labels), or use another base "
            "model."
        )
    return [i[0] for i in ids]


class Spelling(NamedTuple):
    """An environment's name and the labels that its actions may have."""

    name: str
    labels: tuple[str, ...]
