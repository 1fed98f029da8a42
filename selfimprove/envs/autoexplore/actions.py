"""What can be done in a folder, and the labels by which a policy chooses: one token for one action.

    0. cd ..
    1. cd parsers
    2. cat README.md
    3. id README.md

Labels are the numbers 0 to 199, then a-z and A-Z: 252, each one token for GPT-2 (docs/reflect-rl.md, L4 and L30). A
folder with more actions than that shows the first 252.
"""

import string
from collections.abc import Collection, Sequence
from typing import NamedTuple

from selfimprove.core.seeds import rng
from selfimprove.envs.autoexplore.sandbox import quoted, shown
from selfimprove.envs.autoexplore.tree import Entry, View, join
from selfimprove.envs.autoexplore.truncation import ALLOWED_SUFFIXES

LABELS = (*map(str, range(200)), *string.ascii_letters)


class Action(NamedTuple):
    """A command: its name and its operand as it is, without quotes."""

    name: str
    operand: str

    @property
    def text(self) -> str:
        """As it is listed and remembered: ``cat "my file.txt"``."""
        return f"{self.name} {quoted(self.operand)}"

    @property
    def argv(self) -> list[str]:
        """As the sandbox takes it."""
        return [self.name, self.operand]


class Choice(NamedTuple):
    """A listed action and the label that chooses it."""

    label: str
    action: Action


def can_be_listed(name: str) -> bool:
    """Whether a name fits on a line of the state as it is; others are not shown, since they could imitate its parts."""
    return shown(name) == name


def explorable(name: str, entry: Entry) -> bool:
    """Whether an entry is a file of a kind that can be looked at and identified."""
    return entry.kind == "file" and name.endswith(ALLOWED_SUFFIXES) and can_be_listed(name)


def list_actions(view: View, folder: str, seen: Collection[str] = (), most: int = len(LABELS)) -> list[Action]:
    """The first ``most`` actions in a folder, as they are listed; ``seen``: paths that have been ``cat``-ed."""
    return every_action(view, folder, seen)[:most]


def every_action(view: View, folder: str, seen: Collection[str] = ()) -> list[Action]:
    """What can be done in a folder, whether or not there are as many labels.

    ``cd ..`` unless at the root, then by name: ``cd`` for a folder, ``cat`` (unless seen) and ``id`` for a file.
    """
    actions = [Action("cd", "..")] if folder else []
    for name, entry in view.entries(folder).items():
        if entry.kind == "dir" and can_be_listed(name):
            actions.append(Action("cd", name))
        elif explorable(name, entry):
            if join(folder, name) not in seen:
                actions.append(Action("cat", name))
            actions.append(Action("id", name))
    return actions


def label(
    actions: Sequence[Action], shuffle_key: tuple[object, ...] | None = None, labels: Sequence[str] = LABELS
) -> list[Choice]:
    """Give the i-th action label i, or with a key as many distinct ones of all, drawn by it."""
    if shuffle_key is not None:
        labels = rng("autoexplore labels", *shuffle_key).sample(labels, len(actions))
    return [Choice(name, action) for name, action in zip(labels, actions, strict=False)]


def choose(choices: Sequence[Choice], response: str) -> Action | None:
    """The action that a response names, None if it names none.

    Accepted: a command exactly as listed, or a label: with blanks of any kind around it, a trailing dot, or any text
    after the first dot (``7``, `` 7. ``, ``7 .``, ``7. cat a.py``). Not accepted: ``07``, ``.7``, ``Choice 7``
    (docs/reflect-rl.md, L31).
    """
    response = response.strip()
    for choice in choices:
        if choice.action.text == response:
            return choice.action
    named = response.partition(".")[0].rstrip()
    return next((choice.action for choice in choices if choice.label == named), None)
