"""What the two models read: one builder for generation, SFT, RL and evaluation (docs/reflect-rl.md, L2).

The reflection model reads ``instr + pre + analyse`` and the policy, with a reflection R,
``instr + pre + analyse + R + post + act``::

    You drive a taxi T on a grid ...
    You have already completed the following actions:
    ...
     # Analyze:
    The passenger is one row north.
    The actions you can take now is:
    Action 0: move south
    ...
     # Action:

Without a reflection model the policy reads ``pre + post + act``. Each text is one user message and the answer the
assistant's; under the chat template ``text`` the token stream is the original's plain completion. A prompt too long for
the context loses its left side, never the marker nor room for the answer: ``Request.cut_left`` in play, ``shortened``
(``convert.py``) in training.
"""

from typing import Literal, NamedTuple

from selfimprove.core.records import Example, Message
from selfimprove.envs.interface import State


class Markers(NamedTuple):
    """What asks for an analysis and for an action."""

    analyse: str
    act: str


MarkerStyle = Literal["spaced", "stripped"]
MARKERS: dict[MarkerStyle, Markers] = {
    "spaced": Markers(" # Analyze:\n", " # Action:\n"),
    "stripped": Markers("# Analyze:\n", "# Action:\n"),
}
"""``stripped``: without the leading space, for SentencePiece tokenizers, which write one themselves."""


def reflection_prompt(instr: str, state: State, markers: Markers = MARKERS["spaced"]) -> list[Message]:
    """What the reflection model reads of a state: everything but the list of actions."""
    return [Message(role="user", content=f"{instr}{state.pre}{markers.analyse}")]


def policy_prompt(
    instr: str, state: State, reflection: str | None, markers: Markers = MARKERS["spaced"]
) -> list[Message]:
    """What the policy reads; ``reflection`` None: there is no reflection model; "": there is, but it was not asked."""
    if reflection is None:
        return [Message(role="user", content=f"{state.pre}{state.post}{markers.act}")]
    text = f"{instr}{state.pre}{markers.analyse}{reflection}{state.post}{markers.act}"
    return [Message(role="user", content=text)]


def cut_reflection(text: str, markers: Markers = MARKERS["spaced"]) -> str:
    """A reflection as the policy reads it: up to the act marker, written with or without the blanks around it."""
    return text.partition(markers.act.strip())[0].strip()


def reflection_example(
    name: str, instr: str, state: State, reflection: str, markers: Markers = MARKERS["spaced"], source: str = ""
) -> Example:
    """What the reflection model is trained on: the loss begins after the analyse marker and ends with the EOS."""
    return _example(name, reflection_prompt(instr, state, markers), cut_reflection(reflection, markers), source)


def policy_example(
    name: str,
    instr: str,
    state: State,
    reflection: str | None,
    label: str,
    markers: Markers = MARKERS["spaced"],
    source: str = "",
) -> Example:
    """What a policy is trained on: the loss begins after the act marker; the label, and the EOS after it."""
    cut = None if reflection is None else cut_reflection(reflection, markers)
    return _example(name, policy_prompt(instr, state, cut, markers), label, source)


def _example(name: str, prompt: list[Message], answer: str, source: str) -> Example:
    return Example(id=name, messages=[*prompt, Message(role="assistant", content=answer, weight=1)], source=source)
