"""The format of a question and its rounds, in generation and training (docs/spin.md, S11 to S13).

``alpaca`` is one growing text in pieces. The policy's text, the cue and the literal ``Observation:`` have weight 1 in
the loss mask, and a tool's answer has weight 0 ::

    user       Below is an instruction … ### Instruction:\\nIn which town …?\\n\\n### Response:\\n
    assistant  Thought:                                                                             weight 1
    assistant   I need the author.\\nAction: search[The Silver Gate]\\nObservation:                  weight 1
    user        The Silver Gate is a novel by Mara Venn.
    assistant  \\nThought:                                                                           weight 1
    assistant   She was born in Tolma.\\nAction: finish[Tolma]                                       weight 1, then EOS

``question`` is the same after the bare question and a newline. ``chat`` alternates whole turns:
``Thought: …\\nAction: …`` by the assistant, ``Observation: …`` by the user. ``reply`` is plain SPIN: an empty system
turn, a prompt, one answer.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from selfimprove.core.chat import ChatFormat
from selfimprove.core.errors import UserError
from selfimprove.core.records import Message
from selfimprove.envs.qa.experts import Round
from selfimprove.methods.spin.parse import STOP

Format = Literal["alpaca", "question", "chat", "reply"]

WRAPPER = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\n"
)
RESPONSE = "\n\n### Response:\n"
CUE = "Thought:"
NEUTRAL = "No result."
"""The observation after an unknown action, and after a tool that found nothing or failed (failures are counted)."""
FEW_SHOT = Path(__file__).with_name("few_shot")
"""One file per task with worked episodes, for a policy that was not fine-tuned."""


def is_flat(form: Format) -> bool:
    """Whether an episode is one growing text rather than a sequence of chat turns."""
    return form in ("alpaca", "question")


def check_template(model_dir: Path, form: Format) -> None:
    """Refuse a chat template that is incompatible with the episode format.

    Raises:
        UserError: the template adds text between the pieces of one text, or none between turns.
    """
    one_text = ChatFormat.load(model_dir).one_text
    if is_flat(form) and not one_text:
        raise UserError(
            f"spin.prompt.format: {form} writes an episode as one text, but the chat template of {model_dir} inserts "
            "text between its pieces; set base.spin.chat_template: react, or prompt.format: chat."
        )
    if one_text and not is_flat(form):
        raise UserError(
            f"spin.prompt.format: {form} needs turns, but the chat template of {model_dir} does not separate them; set "
            "base.spin.chat_template to zephyr, or to null for the model's own (for the small model: "
            "tokenizer.spin.template to plain)."
        )


def alpaca(question: str) -> str:
    """The Alpaca wrapper without input, i.e. the text before the response.

    Whitespace after the question is stripped, as when FireAct plays; its training files keep it. One in twenty of
    HotpotQA's questions has some (26 of FireAct's 500).
    """
    return f"{WRAPPER}{question.rstrip()}{RESPONSE}"


def heading(question: str, form: Format) -> str:
    """The text before the first round, without few-shot examples."""
    return {"alpaca": alpaca(question), "question": f"{question}\n"}.get(form, question)


def opening(question: str, form: Format, few_shot: str = "") -> list[Message]:
    """The messages before the first round."""
    text = heading(question, form)
    if form == "reply":
        return [Message(role="system", content=""), Message(role="user", content=text)]
    if not few_shot:
        return [Message(role="user", content=text)]
    if is_flat(form):
        return [Message(role="user", content=f"{few_shot.rstrip()}\n\n{text}")]
    return [Message(role="system", content=few_shot.rstrip()), Message(role="user", content=text)]


def cue(form: Format, rounds: int) -> list[Message]:
    """The text that the loop appends before each request and retry. ``rounds``: number of earlier rounds."""
    return [Message(role="assistant", content=f"\n{CUE}" if rounds else CUE, weight=1)] if is_flat(form) else []


def said(thought: str, action: str, form: Format) -> str:
    """The text of one round, from after the cue to the end of the action's line; a ``reply`` has no action."""
    if form == "reply":
        return thought
    return f" {thought}\nAction: {action}" if is_flat(form) else f"{CUE} {thought}\nAction: {action}"


def observed(observation: str, form: Format) -> Message:
    """A tool's answer, which is never trained on (weight 0)."""
    return Message(role="user", content=f" {observation}" if is_flat(form) else f"Observation: {observation}")


def one_line(observation: str | None) -> str:
    """A tool's answer as shown to policies: on one line, so that no part of it can look like another round."""
    return " ".join((observation or "").split()) or NEUTRAL


def written(rounds: Sequence[Round], form: Format) -> list[Message]:
    """The messages of given rounds, such as an expert's.

    They end with the last action: the terminal line after it would distinguish the expert from the policy.
    """
    messages: list[Message] = []
    for number, known in enumerate(rounds):
        last = number == len(rounds) - 1
        text = said(known.thought, known.action, form) + ("" if last or not is_flat(form) else STOP)
        messages += [*cue(form, number), Message(role="assistant", content=text, weight=1)]
        seen = known.observation if known.verbatim else one_line(known.observation)
        messages += [] if last else [observed(seen or NEUTRAL, form)]
    return messages


def few_shot_text(choice: str, task: str) -> str:
    """The worked episodes at the start of a prompt: none for ``off``, the task's own for ``default``, or a file.

    Raises:
        UserError: the file is missing, empty or not UTF-8 text.
    """
    if choice == "off":
        return ""
    path = FEW_SHOT / f"{task}.txt" if choice == "default" else Path(choice)
    try:
        text = path.read_text(encoding="utf-8-sig").rstrip()
    except (OSError, ValueError):  # ValueError: not UTF-8, or a null byte in the path
        if choice == "default":
            raise UserError(f"spin.prompt.few_shot: {task} has no worked episodes; name a file, or set off.") from None
        raise UserError(
            f"spin.prompt.few_shot: {path} cannot be read as text; name another file, or set default or off."
        ) from None
    if not text:
        raise UserError(f"spin.prompt.few_shot: {path} is empty; name another file, or set default or off.")
    return text
