"""Environments whose actions are listed with labels, so that one token acts: what Reflect-RL's methods play in.

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

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from selfimprove.core.errors import UserError

LabelSet = Literal["full", "single"]
LABELS: Mapping[LabelSet, tuple[str, ...]] = {
    "full": (*map(str, range(200)), *string.ascii_letters),
    "single": (*string.digits, *string.ascii_letters),
}
"""What actions may be called: the original's 252, each one token of GPT-2; or the 62 that are one character."""


class State(NamedTuple):
    """What is read before one action: ``pre`` up to the action heading, ``post`` from it on, and the labels in it."""

    pre: str
    post: str
    labels: tuple[str, ...]


class Played(NamedTuple):
    """The result of an action. ``success`` is judged at the end; ``output``: the environment's answer.

    ``valid``: the label was listed, and what it stands for could be done. ``identified``: AutoExplore's answer, a path.
    """

    cost: float
    done: bool
    success: bool
    valid: bool
    output: str
    identified: str | None = None


class Last(NamedTuple):
    """The action before this state, as a teacher looks back on it: the command, and whether it helped."""

    command: str
    helped: bool


class EnumeratedEnv(Protocol):
    """One episode at a time; copies share nothing that changes."""

    @property
    def name(self) -> str:
        """As in the params: taxi, autoexplore, alfworld."""
        ...

    @property
    def instruction(self) -> str:
        """What stands before a state that is reflected on ("instr"); only Taxi has one."""
        ...

    @property
    def heading(self) -> str:
        """What ``post`` begins with, and no ``pre`` ends with."""
        ...

    @property
    def labels(self) -> tuple[str, ...]:
        """Every label that may ever be listed."""
        ...

    @property
    def horizon(self) -> int:
        """Actions after which an episode is cut."""
        ...

    @property
    def levels(self) -> tuple[str, ...]:
        """The curriculum's levels, in order; ("",) where there is none."""
        ...

    def task_ids(self, split: Any = None) -> Sequence[int]:
        """Every task there is; ``train`` or ``valid``: those of a split, all where the environment has none."""
        ...

    def level_tasks(self, level: str, tasks: Sequence[int]) -> list[int]:
        """Those of ``tasks`` that belong to a level, in their order. Raises: UserError: no such level."""
        ...

    def reset(self, task_id: int, episode: int = 0, level: str = "") -> State:
        """Begin a task at a level ("": the params' own); ``episode`` names another draw of labels and left-out files.

        Raises:
            UserError: no such task or level.
        """
        ...

    def state(self) -> State:
        """What is read now; after the end, without labels."""
        ...

    def commands(self) -> dict[str, str]:
        """Label -> command, in listing order; {} at the end."""
        ...

    def step(self, label: str) -> Played:
        """Act. Any text is allowed; one that is no label now is invalid: it costs a step (in Taxi: is dangerous)."""
        ...

    def oracle(self) -> list[str]:
        """Commands of a shortest path to success from here, whether or not the horizon allows it; [] if none."""
        ...

    def explain(self, last: Last | None, *key: object) -> str:
        """A scripted teacher's reflection on the state, in words drawn by ``key``; ``last`` None: the first step.

        It says what the state is like and, if the last action was wrong, why. In Taxi it never tells the next action,
        and in AutoExplore it does not choose one.
        """
        ...

    def reveals(self, text: str) -> bool:
        """Whether a reflection tells the oracle's next action, where that is a secret: Taxi; elsewhere False."""
        ...

    def snapshot(self) -> Any:
        """An immutable value from which ``restore`` brings this moment back."""
        ...

    def restore(self, snapshot: Any) -> None:
        """Return to the moment of a snapshot, taken of any copy."""
        ...

    def copy(self) -> EnumeratedEnv:
        """Another one in the same moment, cheap to make."""
        ...


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
            f"reflect_rl: the tokenizer does not spell each label in one token of its own ({shown}); set "
            f"reflect_rl.env.labels: {offer}, the {len(LABELS[offer])} of one character, or take another base model."
        )
    return [i[0] for i in ids]


class Spelling(NamedTuple):
    """Whose actions, and what they may be called."""

    name: str
    labels: tuple[str, ...]
