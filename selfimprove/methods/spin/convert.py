"""Trajectories to Alpaca rows (docs/spin.md, S43).

Of the README's sample, in the two modes ::

    parity     {"instruction": "What movie did …?", "input": "", "output": "Thought: … reward = False\\n"}
    self_play  {"instruction": "What movie did …?", "input": "", "output": "Thought: … Action: finish[The Fugitive]"}

``parity`` is the original's, byte for byte. ``self_play`` drops the terminal observation and its newline: it says True
on every expert and False on every failure, so a model could win on that word alone. The instruction is the text between
the markers, on however many lines; the original counts lines, which breaks MMLU's questions.
"""

from typing import Literal

from selfimprove.methods.spin.prompts import RESPONSE

Mode = Literal["parity", "self_play"]

_INSTRUCTION = "### Instruction:\n"
_TERMINAL = "Observation: Episode finished, reward = "


def alpaca_row(traj: str, mode: Mode) -> dict[str, str]:
    """The row of one trajectory text.

    Raises:
        ValueError: the text has no instruction and response marker.
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
    """The text up to its last action, if terminal observations follow it; else without a newline at its end."""
    kept, seen = output.rstrip("\r\n"), False
    while kept[kept.rfind("\n") + 1 :].startswith(_TERMINAL):
        kept, seen = kept.rpartition("\n")[0].rstrip("\r\n"), True
    return kept if seen else output.removesuffix("\n")
