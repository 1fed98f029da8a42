"""Conversations in the formats of the original's logs and of its trainer (docs/agent-r.md, A44).

    pair log    {"task_num", "revise_log", "high_log", "low_log", "task_description", "revise", "revise_feedback"}
    good log    {"task_num", "revise_log", "revise"}
    XTuner      {"conversation": [{"system", "input", "output", "output_with_loss"}, …]}
    OpenAI      {"messages": [{"role", "content", "loss"}, …]}

The original's converter drops ``loss``, so that bad steps would be trained on. Here every format includes it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ConfigDict, Field, ValidationError

from selfimprove.core.errors import UserError, fault
from selfimprove.core.records import Example, Message, Record, Role
from selfimprove.methods.agent_r.judge_prompt import Judgement
from selfimprove.methods.agent_r.prompts import OPENING
from selfimprove.methods.agent_r.revise import whole
from selfimprove.methods.agent_r.selection import LeafPair
from selfimprove.methods.agent_r.tree import Tree


def pair_row(
    tree: Tree,
    pair: LeafPair,
    walked: Sequence[int],
    judgements: Sequence[Judgement],
    trajectory: Sequence[Message],
    *,
    revise: bool,
) -> dict[str, Any]:
    """One line of the pair log.

    Args:
        walked: the bad path up to its transition point; ``judgements``: of its steps (none in direct revision).
        trajectory: the revision trajectory from ``revise.splice`` or from the replay.
    """
    opened = len(tree.prompt)
    return {
        "task_num": str(tree.task_id),
        "revise_log": log(trajectory, opened),
        "high_log": log(whole(tree, tree.path(pair.good)), opened),
        "low_log": log(whole(tree, tree.path(pair.bad)), opened),
        "task_description": tree.prompt[OPENING - 1].content,
        "revise": revise,
        "revise_feedback": [
            {
                "revision_feedback": judgement.text,
                "action": tree.nodes[index].action,
                "obs": tree.nodes[index].observation,
                "judgement": judgement.verdict.capitalize(),
            }
            for index, judgement in zip(walked, judgements, strict=False)
        ],
    }


def good_row(tree: Tree, leaf: int, *, revise: bool) -> dict[str, Any]:
    """One line of the good log."""
    trajectory = whole(tree, tree.path(leaf))
    return {"task_num": str(tree.task_id), "revise_log": log(trajectory, len(tree.prompt)), "revise": revise}


def log(messages: Sequence[Message], opened: int) -> list[dict[str, Any]]:
    """Messages in the original's log format; replies after the first ``opened`` messages have ``loss``."""
    rows = []
    for place, message in enumerate(messages):
        row: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.role == "assistant" and place >= opened:
            row["loss"] = bool(message.weight)
        rows.append(row)
    return rows


def from_log(row: Mapping[str, Any], where: str) -> Example:
    """The training example of a line of either log, from its ``revise_log``. A reply without ``loss`` is context.

    Logs have no token ids, so the example's text is tokenised again.

    Raises:
        UserError: not a line of such a log; the message contains ``where``.
    """
    try:
        logged = _Log.model_validate(row)
    except ValidationError as error:
        raise UserError(f"{where}: {fault(error)}; fix or delete the line.") from None
    messages = [_message(said, trained=bool(said.loss)) for said in logged.revise_log]
    return Example(id=where, messages=messages, source=str(logged.task_num))


def to_xtuner(example: Example) -> dict[str, Any]:
    """XTuner's turns: the messages since the last reply, the reply, and whether it is trained on.

    Every turn has the flag, because XTuner masks turns without it as soon as one turn has it. The first turn has the
    system prompt. Other messages between two replies are joined by newlines. Omitted are messages after the last reply
    and, as by XTuner's own converter, replies at the very beginning; one after a system prompt has an empty input.

    Raises:
        UserError: the example has no reply, a system message after the first message, or a trained user message.
    """
    turns: list[dict[str, Any]] = []
    system, waiting = "", list[str]()
    for place, message in enumerate(example.messages):
        if message.role == "system" and place == 0:
            system = message.content
        elif message.role == "system" or (message.role == "user" and message.weight):
            raise UserError(
                f"example {example.id!r}, message {place + 1}: XTuner's format cannot represent a "
                f"{'later system message' if message.role == 'system' else 'trained user message'}; train with the "
                "trainer backend."
            )
        elif message.role == "user":
            waiting.append(message.content)
        elif turns or waiting or example.messages[0].role != "assistant":
            turns.append(
                {
                    "system": system,
                    "input": "\n".join(waiting),
                    "output": message.content,
                    "output_with_loss": bool(message.weight),
                }
            )
            system, waiting = "", []
    if not turns:
        raise UserError(f"example {example.id!r} has no reply to train on, so it has no XTuner form; remove it.")
    return {"conversation": turns}


def from_xtuner(row: Mapping[str, Any], where: str) -> Example:
    """The example of an XTuner row, with weights 1 and 0.

    As in XTuner, a turn without the flag is masked if another turn has it.

    Raises:
        UserError: not such a row.
    """
    try:
        turns = _Conversation.model_validate(row).conversation
    except ValidationError as error:
        raise UserError(f"{where}: {fault(error)}; fix or delete the line.") from None
    flagged = any(turn.output_with_loss is not None for turn in turns)
    messages = []
    for turn in turns:
        trained = bool(turn.output_with_loss) if flagged else True
        if turn.system:
            messages.append(Message(role="system", content=turn.system))
        messages += [
            Message(role="user", content=turn.input or ""),
            Message(role="assistant", content=turn.output, weight=float(trained)),
        ]
    return Example(id=where, messages=messages)


def to_openai(example: Example) -> dict[str, Any]:
    """Chat messages with a boolean ``loss`` on every reply.

    Raises:
        UserError: a message that is no reply is trained on, as with ``tasks.observation_weight``.
    """
    for place, message in enumerate(example.messages):
        if message.weight and message.role != "assistant":
            raise UserError(
                f"example {example.id!r}, message {place + 1}: chat messages cannot represent a trained "
                f"{message.role} message; export examples made with tasks.observation_weight: 0."
            )
    return {"messages": log(example.messages, 0)}


def from_openai(row: Mapping[str, Any], where: str) -> Example:
    """The example of a row of chat messages. As in XTuner's converter, a reply without ``loss`` is trained on.

    Raises:
        UserError: not such a row.
    """
    try:
        said = _Chat.model_validate(row).messages
    except ValidationError as error:
        raise UserError(f"{where}: {fault(error)}; fix or delete the line.") from None
    messages = [_message(one, trained="loss" not in one.model_fields_set or bool(one.loss)) for one in said]
    return Example(id=where, messages=messages)


class _Said(Record):
    role: Role
    content: str
    loss: bool | None = False  # null: not trained on, as in rows that passed through Arrow


def _message(said: _Said, *, trained: bool) -> Message:
    """A message with weight 1 if it is a trained reply; XTuner's converter ignores the flags of other messages too."""
    return Message(role=said.role, content=said.content, weight=float(trained and said.role == "assistant"))


class _Log(Record):
    model_config = ConfigDict(extra="ignore")

    task_num: int | str
    revise_log: list[_Said] = Field(min_length=1)


class _Chat(Record):
    model_config = ConfigDict(extra="ignore")

    messages: list[_Said] = Field(min_length=1)


class _Turn(Record):
    system: str | None = ""
    input: str | None
    output: str
    output_with_loss: bool | None = None


class _Conversation(Record):
    model_config = ConfigDict(extra="ignore")

    conversation: list[_Turn] = Field(min_length=1)
