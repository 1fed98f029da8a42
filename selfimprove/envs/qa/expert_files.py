"""Reads FireAct's expert files: repairs, filters and counts their rows (docs/spin.md, S29).

An Alpaca row (``alpaca_format/hotpotqa.json``); chat rows (``gpt_format/``) contain the same as messages::

    {"instruction": "In which American football game was Malcolm Smith named Most Valuable player?", "input": "",
     "output": "Thought: I need to search …\\nAction: search[Malcolm Smith …]\\nObservation: Smith was named …\\n"
               "Thought: …\\nAction: finish[Super Bowl XLVIII]\\nObservation: Episode finished, reward = True\\n"}

Repaired: questions whose last lines (MMLU's options) were moved to the output, or that are repeated at its start.
Dropped: malformed rows, rows with a round that lacks a thought or an action, rows without an end or with a failed end
(40 of the released 734), and questions that already have an expert. The terminal line is always removed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field

from selfimprove.core.errors import UserError
from selfimprove.core.records import Record, read_records
from selfimprove.envs.qa.base import Question, TaskName, content_id, folded
from selfimprove.envs.qa.experts import Expert, Quest, Round, demonstrate
from selfimprove.envs.qa.mmlu import letter_of

if TYPE_CHECKING:
    from selfimprove.envs.qa.tools.bm25 import LocalSearch

SHOWN = 20
"""The maximum number of row numbers listed for each reason in an audit."""

_PART = re.compile(r"^(Thought|Action|Observation):", re.MULTILINE)
_END = re.compile(r"Episode finished, reward = (\w+)")
_SEARCH = re.compile(r"search *\[.+\]", re.IGNORECASE)  # tool names are case-insensitive, as for a policy
_FINISH = re.compile(r"finish *\[.*\]", re.IGNORECASE)


class ExpertAudit(Record):
    """What happened to a file's rows. ``repaired`` and ``dropped``: reason -> number of rows."""

    file: str
    read: int = 0
    kept: int = 0
    without_search: int = Field(default=0, description="rows kept although they answer without any search")
    repaired: dict[str, int] = Field(default={})
    dropped: dict[str, int] = Field(default={})
    places: dict[str, list[int]] = Field(
        default={}, description="indices of the first dropped rows for each reason, from 0"
    )

    def joined(self, other: ExpertAudit) -> ExpertAudit:
        """The audit of both files; reasons of ``other`` are prefixed with its file name."""
        theirs = {f"{other.file}: {reason}": count for reason, count in other.dropped.items()}
        where = {f"{other.file}: {reason}": rows for reason, rows in other.places.items()}
        return ExpertAudit(
            file=f"{self.file}, {other.file}",
            read=self.read + other.read,
            kept=self.kept + other.kept,
            without_search=self.without_search + other.without_search,
            repaired=dict(Counter(self.repaired) + Counter(other.repaired)),
            dropped=self.dropped | theirs,
            places=self.places | where,
        )


class _Dropped(Exception):
    """The reason why a row is not an expert trajectory."""


def read_experts(
    path: Path, *, task: TaskName = "hotpotqa", searching: bool = False
) -> tuple[list[Expert], ExpertAudit]:
    """The usable trajectories of a file, in file order, and an audit of all rows.

    Args:
        path: a JSON list or JSONL of Alpaca rows or of chats.
        task: the task of questions without options; those with options are MMLU's. The gold answer is the expert's
            answer, because rows that did not earn the reward are dropped.
        searching: also drop rows that answer without a search.

    Raises:
        UserError: the file is missing or has another format, or no row is usable.
    """
    experts: list[Expert] = []
    read = 0
    repaired: Counter[str] = Counter()
    places: dict[str, list[int]] = {}
    seen: set[str] = set()
    for number, (_, row) in enumerate(read_records(path)):
        read += 1
        try:
            expert, repair = _expert(row, task)
            repaired.update([repair] if repair else [])
            asked = folded(expert.question.question)
            if asked in seen:
                raise _Dropped("duplicate question")
            if searching and len(expert.rounds) == 1:
                raise _Dropped("no search")
        except _Dropped as reason:
            places.setdefault(str(reason), []).append(number)
            continue
        seen.add(asked)
        experts.append(expert)
    audit = ExpertAudit(
        file=path.name,
        read=read,
        kept=len(experts),
        without_search=sum(len(expert.rounds) == 1 for expert in experts),
        repaired=dict(sorted(repaired.items())),
        dropped={reason: len(numbers) for reason, numbers in sorted(places.items())},
        places={reason: numbers[:SHOWN] for reason, numbers in sorted(places.items())},
    )
    if not experts:
        raise UserError(f"{path} contains no usable expert trajectory (dropped: {audit.dropped}); name another file.")
    return experts, audit


def scripted_experts(
    quests: Sequence[Quest], search: LocalSearch, *, file: str = "scripted"
) -> tuple[list[Expert], ExpertAudit]:
    """Scripted experts for the questions whose searches find their paragraphs, and an audit of all of them.

    A question is dropped if the search ranks another paragraph first for one of its plan's queries: an expert that
    gives an answer which it never read would teach guessing.

    Args:
        file: the questions' source, for the audit.

    Raises:
        UserError: no question is left, or a gold answer earns no reward.
    """
    experts, places = [], []
    for number, quest in enumerate(quests):
        found = [search.place(lookup.query) for lookup in quest.lookups]
        titles = [None if place is None else search.paragraphs[place].title for place in found]
        if titles == [lookup.title for lookup in quest.lookups]:
            experts.append(demonstrate(quest, search))
        else:
            places.append(number)
    if quests and not experts:
        raise UserError(
            f"{file}: no scripted expert's searches find its paragraphs; change their titles or queries, or use the "
            "search setup title_text."
        )
    dropped = {"paragraph not found": places} if places else {}
    audit = ExpertAudit(
        file=file,
        read=len(quests),
        kept=len(experts),
        dropped={reason: len(numbers) for reason, numbers in dropped.items()},
        places={reason: numbers[:SHOWN] for reason, numbers in dropped.items()},
    )
    return experts, audit


def _expert(row: Mapping[str, Any], task: TaskName) -> tuple[Expert, str]:
    """A row's trajectory, and the repair that was made ("": none)."""
    asked, written = _chat(row) if "messages" in row else _alpaca(row)
    first = _PART.search(written)
    if first is None:
        raise _Dropped("no rounds")
    # Text before the first round belongs to the question.
    head, repair = written[: first.start()].strip("\n"), ""
    if f" {folded(head)}".endswith(f" {folded(asked)}"):  # StrategyQA's prefix may precede it
        repair = "question repeated in the output"
    elif head.strip():
        options = head.lstrip().startswith("A. ") and _has_options(head)
        repair = "options moved back to the question" if options else "question continued in the output"
        asked = f"{asked}\n{head}"
    rounds = _rounds(written[first.start() :])
    task = "mmlu" if _has_options(asked) else task
    gold = rounds[-1].action.partition("[")[2].removesuffix("]").strip()
    if not gold:
        raise _Dropped("empty answer")
    if task == "mmlu":
        gold = letter_of(gold) or gold  # the letter of "B. eagle", with which answers are compared
    question = Question(id=content_id(task, asked), task=task, question=asked, gold=gold)
    return Expert(id=f"expert-{question.id}", question=question, rounds=rounds, source="gpt-4"), repair


def _has_options(text: str) -> bool:
    """Whether the text contains the lines A., B. and C. in this order; a regular expression needs cubic time."""
    return "\nC. " in text.partition("A. ")[2].partition("\nB. ")[2]


def _alpaca(row: Mapping[str, Any]) -> tuple[str, str]:
    instruction, context, output = row.get("instruction"), row.get("input", ""), row.get("output")
    if not isinstance(instruction, str) or not instruction.strip() or not isinstance(output, str):
        raise _Dropped("malformed row")
    if context is not None and not isinstance(context, str):
        raise _Dropped("malformed row")
    return (f"{instruction}\n{context}" if context else instruction), output


def _chat(row: Mapping[str, Any]) -> tuple[str, str]:
    messages = row["messages"]
    if not isinstance(messages, list) or len(messages) < 2:
        raise _Dropped("malformed row")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("content"), str):
            raise _Dropped("malformed row")
    messages = messages[1:] if messages[0].get("role") == "system" else messages
    question, *rest = (message["content"] for message in messages)
    if not question.strip():
        raise _Dropped("malformed row")
    return question, "\n".join(rest)


def _rounds(text: str) -> list[Round]:
    """The rounds of a trajectory that ends with a rewarded ``finish``."""
    pieces = _PART.split(text)[1:]
    parts = [(label, content.strip()) for label, content in zip(pieces[::2], pieces[1::2], strict=True)]
    end = _END.fullmatch(parts[-1][1]) if parts[-1][0] == "Observation" else None
    if end is None:
        raise _Dropped("no end")
    if end[1] not in ("True", "1"):
        raise _Dropped("failed")
    labels = [label for label, _ in parts]
    if len(parts) % 3 or labels != ["Thought", "Action", "Observation"] * (len(parts) // 3):
        raise _Dropped("a round lacks its thought, action or observation")
    rounds = []
    for place in range(0, len(parts), 3):
        thought, action, observation = (content for _, content in parts[place : place + 3])
        last = place + 3 == len(parts)
        known = (_FINISH if last else _SEARCH).fullmatch(action)
        if not thought or known is None:
            raise _Dropped("a round is no thought with one action")
        seen = None if last or observation == "None" else observation  # the original's text if nothing was found
        rounds.append(Round(thought=thought, action=action, observation=seen))
    return rounds
