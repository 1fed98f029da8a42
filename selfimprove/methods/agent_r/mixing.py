"""Mixes revision trajectories, good trajectories and general chat as specified by ``mix`` (docs/agent-r.md, A25)."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from selfimprove.core.errors import UserError
from selfimprove.core.records import Example, read_records, read_rows
from selfimprove.core.seeds import rng
from selfimprove.methods.agent_r.formats import from_openai
from selfimprove.methods.agent_r.params import Mix

T = TypeVar("T")

SPEAKERS = {"human": "user", "gpt": "assistant"}
"""ShareGPT's role names."""

GENERAL_OFF = (
    "general chat data is off (convert.mix.general is 0); the paper mixes it in, so that the agent stays a general "
    "assistant: name a file under convert.mix.general_file and set convert.mix.general."
)


def mixed(
    revision: Sequence[Example], good: Sequence[Example], mix: Mix, seed: int, warm_start: Sequence[Example] = ()
) -> dict[str, list[Example]]:
    """The training examples of each kind.

    For ``revision`` and ``good``, weight w includes every example floor(w) times and a share w - floor(w) of them,
    drawn by the seed, once more. Weight ``general`` adds that many chats per such example (0.2: one per five), drawn
    without replacement until the file is exhausted, then again. Weight ``warm_start`` likewise adds the base's training
    examples, which play the role of general chat for a model trained from scratch.

    Raises:
        UserError: ``general`` is above 0 and its file is not configured, is missing or has a malformed line.
    """
    kinds = {
        "revision": _times(revision, mix.revision, seed, "revision"),
        "good": _times(good, mix.good, seed, "good"),
        "general": list[Example](),
    }
    agent = len(kinds["revision"]) + len(kinds["good"])
    kinds["warm_start"] = _drawn(warm_start, round(mix.warm_start * agent), seed, "warm_start")
    if mix.general > 0:
        if mix.general_file is None:
            raise UserError(
                "convert.mix.general is above 0 but convert.mix.general_file is not set; name a file of chats, "
                "or set convert.mix.general to 0."
            )
        chats = read_chats(Path(mix.general_file))
        kinds["general"] = _drawn(chats, round(mix.general * agent), seed, "general")
    return kinds


def read_chats(path: Path) -> list[Example]:
    """Chats of a JSONL file or of a JSON list (``.json``), with every assistant message trained on.

    A line is ``{"messages": [{"role", "content"}, …]}`` or, as in ShareGPT, ``{"conversations": [{"from", "value"},
    …]}``; other keys are ignored.

    Raises:
        UserError: the file is missing or empty, or a line (named in the message) has no assistant message.
    """
    chats = []
    for number, place, row in _rows(path):
        messages = from_openai({"messages": _said(row)}, place).messages
        if not any(message.weight for message in messages):
            raise UserError(f"{place}: no assistant message to train on; fix or delete it.")
        chats.append(Example(id=f"general_{number}", messages=messages, source=f"{path.name}:{number}"))
    return chats


def _rows(path: Path) -> Iterator[tuple[int, str, Mapping[str, Any]]]:
    """The number, the place for errors and the object of each line, or of each item of a list."""
    if path.suffix == ".json":
        for item, (place, row) in enumerate(read_records(path)):
            yield item, place, row
    else:
        for line, row in read_rows(path):
            yield line, f"{path}, line {line}", row


def _said(row: Mapping[str, Any]) -> Any:
    """The messages of a line with their roles and contents; malformed ones are passed on for validation."""
    said = row.get("messages", row.get("conversations"))
    if not isinstance(said, list) or not all(isinstance(message, Mapping) for message in said):
        return said
    named = [
        {"role": SPEAKERS.get(message["from"], message["from"]), "content": message.get("value")}
        if isinstance(message.get("from"), str)
        else message
        for message in said
    ]
    return [{key: message[key] for key in ("role", "content") if key in message} for message in named]


def _drawn(items: Sequence[T], count: int, seed: int, kind: str) -> list[T]:
    """``count`` items, drawn without replacement until all are used, then repeated in the same order."""
    order = list(items)
    rng("mix", seed, kind).shuffle(order)
    return [order[i % len(order)] for i in range(count)] if order else []


def _times(items: Sequence[T], weight: float, seed: int, kind: str) -> list[T]:
    whole = int(weight)
    some = rng("mix", seed, kind).sample(range(len(items)), round((weight - whole) * len(items)))
    return [*items] * whole + [items[i] for i in sorted(some)]
