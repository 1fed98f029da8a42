"""Converts trajectories to Alpaca rows (docs/spin.md, S43).

The two modes, for the README's sample ::

    parity     {"instruction": "What movie did …?", "input": "", "output": "Thought: … reward = False\\n"}
    self_play  {"instruction": "What movie did …?", "input": "", "output": "Thought: … Action: finish[The Fugitive]"}

``parity`` equals the original's output byte for byte. ``self_play`` drops the terminal observation and its newline: it
is True for every expert and False for every failure, so a model could tell the sides apart by that word alone. The
instruction is the text between the markers, on any number of lines; the original counts lines, which breaks MMLU's
questions.
"""

from typing import Literal

from selfimprove.methods.spin.prompts import RESPONSE

Mode = Literal["parity", "self_play"]

_INSTRUCTION = "### Instruction:\n"
_TERMINAL = "Observation: Episode finished,"


def alpaca_row(traj: str, mode: Mode) -> dict[str, str]:
    """The row of one trajectory text.

    Raises:
        ValueError: the text lacks the instruction or response marker.
    """
    start = traj.find(_INSTRUCTION)
    middle = traj.find(RESPONSE, start)
    if start < 0 or middle < 0:
        raise ValueError("no '### Instruction:' and '### Response:' lines")
    output = traj[middle + len(RESPONSE) :]
    if mode == "self_play":
        output = without_terminal(output)
    return {"instruction": traj[start + len(_INSTRUCTION) : middle], "input": "", "output": output}


def without_terminal(output: str) -> str:
    """The text up to its last action if terminal observations follow it; otherwise without a trailing newline."""
    kept, seen = output.rstrip("\r\n"), False
    while kept[kept.rfind("\n") + 1 :].startswith(_TERMINAL):
        kept, seen = kept.rpartition("\n")[0].rstrip("\r\n"), True
    return kept if seen else output.removesuffix("\n")
