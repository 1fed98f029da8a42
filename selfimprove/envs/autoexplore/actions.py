"""The actions in a folder, and the labels by which a policy chooses them: one token per action.

    0. cd ..
    1. cd parsers
    2. cat README.md
    3. id README.md

Labels are the numbers 0 to 199, then a-z and A-Z: 252, each a single token for GPT-2 (docs/reflect-rl.md, L4 and L30).
Of a folder with more actions, the first 252 are listed.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from selfimprove.core.seeds import rng
from selfimprove.envs.autoexplore.sandbox import quoted, shown
from selfimprove.envs.autoexplore.tree import Entry, View, join
from selfimprove.envs.autoexplore.truncation import ALLOWED_SUFFIXES
from selfimprove.envs.labels import LABELS as LABEL_SETS

LABELS = LABEL_SETS["full"]


class Action(NamedTuple):
    """A command: its name and its literal operand, without quotes."""

    name: str
    operand: str

    @property
    def text(self) -> str:
        """The command as listed and stored in the history: ``cat "my file.txt"``."""
        return f"{self.name} {quoted(self.operand)}"

    @property
    def argv(self) -> list[str]:
        """The arguments of ``Sandbox.run``."""
        return [self.name, self.operand]


class Choice(NamedTuple):
    """A listed action and its label."""

    label: str
    action: Action


def can_be_listed(name: str) -> bool:
    """Whether a name can be listed literally on one line; others are hidden: they could imitate parts of a state."""
    return shown(name) == name


def explorable(name: str, entry: Entry) -> bool:
    """Whether an entry is a file of a kind that can be read and identified."""
    return entry.kind == "file" and name.endswith(ALLOWED_SUFFIXES) and can_be_listed(name)


def list_actions(view: View, folder: str, seen: Collection[str] = (), most: int = len(LABELS)) -> list[Action]:
    """The first ``most`` actions in a folder, in listing order; ``seen``: paths that have been read with ``cat``."""
    return every_action(view, folder, seen)[:most]


def every_action(view: View, folder: str, seen: Collection[str] = ()) -> list[Action]:
    """All actions in a folder, even if there are more than labels.

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
    """Give the i-th action the i-th label; with a key, give the actions distinct labels drawn by it."""
    if shuffle_key is not None:
        labels = rng("autoexplore labels", *shuffle_key).sample(labels, len(actions))
    return [Choice(name, action) for name, action in zip(labels, actions, strict=False)]


def choose(choices: Sequence[Choice], response: str) -> Action | None:
    """The action selected by a response; None if there is none.

    Accepted: a command exactly as listed, or a label with any white space or dots around it, or any text after the
    first dot (``7``, `` 7. ``, ``.7``, ``7. cat a.py``). Not accepted: ``07``, ``7 .``, ``Choice 7``
    (docs/reflect-rl.md, L31).
    """
    response = response.strip()
    for choice in choices:
        if choice.action.text == response:
            return choice.action
    named = response.strip(".").partition(".")[0]
    return next((choice.action for choice in choices if choice.label == named), None)
