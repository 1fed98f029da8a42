"""The prompts of both models, from one builder for generation, SFT, RL and evaluation (docs/reflect-rl.md, L2).

The reflection model's prompt is ``instr + pre + analyse``; the policy's, with a reflection R, is
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

Without a reflection model the policy's prompt is ``pre + post + act``. A prompt is one user message and the answer an
assistant message. With the chat template ``text`` the token stream is the original's plain completion. A prompt that
exceeds the context is cut on the left, which keeps the marker and room for the answer: by ``Request.cut_left`` in play
and by ``shortened`` (``convert.py``) in training.
"""

from typing import Literal, NamedTuple

from selfimprove.core.records import Example, Message
from selfimprove.envs.interface import State


class Markers(NamedTuple):
    """The texts that request an analysis and an action."""

    analyse: str
    act: str


MarkerStyle = Literal["spaced", "stripped"]
MARKERS: dict[MarkerStyle, Markers] = {
    "spaced": Markers(" # Analyze:\n", " # Action:\n"),
    "stripped": Markers("# Analyze:\n", "# Action:\n"),
}
"""``stripped``: without the leading space, for SentencePiece tokenizers, which add one themselves."""


def reflection_prompt(instr: str, state: State, markers: Markers = MARKERS["spaced"]) -> list[Message]:
    """The reflection model's prompt for a state, which excludes the list of actions."""
    return [Message(role="user", content=f"{instr}{state.pre}{markers.analyse}")]


def policy_prompt(
    instr: str, state: State, reflection: str | None, markers: Markers = MARKERS["spaced"]
) -> list[Message]:
    """The policy's prompt. ``reflection``: None without a reflection model, "" if the model was not called."""
    if reflection is None:
        return [Message(role="user", content=f"{state.pre}{state.post}{markers.act}")]
    text = f"{instr}{state.pre}{markers.analyse}{reflection}{state.post}{markers.act}"
    return [Message(role="user", content=text)]


def cut_reflection(text: str, markers: Markers = MARKERS["spaced"]) -> str:
    """A reflection as shown to the policy: up to the act marker, with or without the blanks around it."""
    return text.partition(markers.act.strip())[0].strip()


def reflection_example(
    name: str, instr: str, state: State, reflection: str, markers: Markers = MARKERS["spaced"], source: str = "",
    *, cut: bool = False,
) -> Example:  # fmt: skip
    """Training example of the reflection model, with loss from after the analyse marker up to and including the EOS.

    A reflection that was ``cut`` at the token limit has no EOS.
    """
    said = cut_reflection(reflection, markers)
    made = _example(name, reflection_prompt(instr, state, markers), said, source)
    if cut and said == reflection.strip():  # not if what was cut lies after a marker
        made.messages[-1].finish = "length"
    return made


def policy_example(
    name: str,
    instr: str,
    state: State,
    reflection: str | None,
    label: str,
    markers: Markers = MARKERS["spaced"],
    source: str = "",
) -> Example:
    """Training example of a policy, with loss on the label after the act marker and on the EOS after it."""
    cut = None if reflection is None else cut_reflection(reflection, markers)
    return _example(name, policy_prompt(instr, state, cut, markers), label, source)


def _example(name: str, prompt: list[Message], answer: str, source: str) -> Example:
    return Example(id=name, messages=[*prompt, Message(role="assistant", content=answer, weight=1)], source=source)
