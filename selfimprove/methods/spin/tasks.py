"""SPIN's questions: a training split with an expert for each, a dev and a test split, and the searched paragraphs.

Splits are frozen and in the data set's order, so that a question's place in its split is its task index. No question
occurs in two splits. Each stage plays the ``chosen`` places of a split: shuffled with the original's seed, then cut
(docs/spin.md, S15).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from shutil import copyfile
from typing import Any

from selfimprove.core.errors import UserError
from selfimprove.core.records import Example, Message, read_records
from selfimprove.core.sources import fetch, load_sources
from selfimprove.envs.own_classes import make_own
from selfimprove.envs.qa.base import Paragraph, Question, Split, duplicates, folded
from selfimprove.envs.qa.datasets import load_questions
from selfimprove.envs.qa.encyclopedia import make_encyclopedia
from selfimprove.envs.qa.expert_files import ExpertAudit, read_experts, scripted_experts
from selfimprove.envs.qa.experts import Expert, Quest, QuestSource, hotpotqa_quest
from selfimprove.envs.qa.hotpotqa import context_paragraphs, read_question, task_order
from selfimprove.envs.qa.tools.bm25 import LocalSearch, read_corpus
from selfimprove.envs.qa.tools.dispatch import Tools, make_tools
from selfimprove.envs.qa.tools.params import ToolsParams
from selfimprove.methods.spin.chats import read_chats
from selfimprove.methods.spin.params import OtherTask, PlayParams, TasksParams
from selfimprove.methods.spin.parse import STOP
from selfimprove.methods.spin.prompts import CUE, RESPONSE, WRAPPER, Format, is_flat, opening, written

SPLITS: tuple[Split, ...] = ("train", "dev", "test")
SNIPPETS = "snippets.jsonl"
SCAFFOLD = (CUE, f"\n{CUE}", "\nAction: search[", "\nAction: finish[", f"]{STOP}")
"""The fixed pieces of text in every episode."""
ACTED = (CUE, f"\n{CUE}", "\nAction:", STOP)
"""The fixed pieces of text in episodes of interactive environments."""


@dataclass
class Material:
    """The output of the data stage. ``experts`` has one for every question of the training split, in order."""

    splits: dict[Split, list[Question]]
    experts: list[Expert]
    paragraphs: list[Paragraph]
    audit: ExpertAudit


def gather(
    tasks: TasksParams,
    tools: ToolsParams,
    *,
    seed: int,
    download: Path,
    mirror: Path | None,
    play_tools: ToolsParams | None = None,
) -> Material:
    """Splits, experts and paragraphs of the source. ``play_tools``: the tools of self-play, if it has its own.

    Raises:
        UserError: the source is unavailable or malformed, has too few questions, or a question is in two splits.
    """
    if tasks.source == "encyclopedia":
        material = _encyclopedia(tasks, tools, seed)
    elif ":" in tasks.source:
        material = _own(tasks, tools)
    elif tasks.source == "chat":
        material = _chat(tasks)
    else:
        searched = any("local" in one.use.values() for one in (tools, play_tools) if one is not None)
        material = _hotpotqa(tasks, tools, download, mirror, searched=searched)
    if tasks.other is not None:
        material.splits["test"] = _first(_other(tasks.other, download, mirror), tasks.test, "test")
    repeating: Sequence[Split] = SPLITS if tasks.source == "chat" else () if tasks.other is None else ("test",)
    check_disjoint(_once_each(material.splits, repeating))
    return material


def check_disjoint(splits: Mapping[Split, Sequence[Question]]) -> None:
    """Refuse a question that occurs in two splits or twice in one.

    Raises:
        UserError: names the first such question and its splits.
    """
    twice = duplicates({str(name): questions for name, questions in splits.items()})
    if twice:
        text, names = next(iter(twice.items()))
        more = f" (and {len(twice) - 1} more)" if len(twice) > 1 else ""
        raise UserError(
            f"spin.tasks: the question {text[:80]!r} is in {' and '.join(names)}{more}; keep it in only one place."
        )


def _once_each(
    splits: Mapping[Split, Sequence[Question]], repeating: Sequence[Split]
) -> dict[Split, Sequence[Question]]:
    """The splits, with duplicates removed within those of ``repeating``, for ``check_disjoint``.

    Chats repeat prompts, and plain SPIN keeps every row. Other data sets repeat questions, which are played each time.
    """
    once = {name: list({folded(one.question): one for one in splits[name]}.values()) for name in repeating}
    return {**splits, **once}


def chosen(split: Sequence[Question], cfg: PlayParams) -> list[tuple[int, Question]]:
    """(task index, question) of the played part of a split, in playing order.

    Raises:
        UserError: the split has too few questions; rates would otherwise silently be over fewer.
    """
    order = task_order(len(split), shuffled=cfg.shuffled)
    end = len(order) if cfg.end is None else cfg.end
    if end > len(order) or cfg.start >= end:
        raise UserError(
            f"spin: questions {cfg.start} to {end} are requested, but the split has {len(order)}; fix start and end."
        )
    return [(index, split[index]) for index in order[cfg.start : end]]


def expert_messages(expert: Expert, form: Format, *, few_shot: str = "", prefix: str = "") -> list[Message]:
    """A whole expert episode in the policy's format; text that the policy would write has weight 1."""
    return [*opening(f"{prefix}{expert.question.question}", form, few_shot), *written(expert.rounds, form)]


def examples(experts: Sequence[Expert], form: Format, *, few_shot: str = "", prefix: str = "") -> list[Example]:
    """The warm start's training examples, with loss only on text that the policy writes."""
    return [
        Example(
            id=expert.id,
            messages=expert_messages(expert, form, few_shot=few_shot, prefix=prefix),
            source=expert.question.id,
        )
        for expert in experts
    ]


def texts(made: Sequence[Example], form: Format, scaffold: Sequence[str] = SCAFFOLD) -> list[dict[str, Any]]:
    """Training texts of the small tokenizer; each piece of an episode's fixed text is one token."""
    pieces = [*((WRAPPER, RESPONSE) if form == "alpaca" else ()), *(scaffold if is_flat(form) else ())]
    fixed = [{"text": text, "fixed": True} for text in pieces]
    rows = []
    for example in made:
        asked = example.messages[0].content.removeprefix(WRAPPER).removesuffix(RESPONSE)
        rows += [{"text": asked}, *({"text": message.content} for message in example.messages[1:])]
    return [*fixed, *rows]


# --- sources ---------------------------------------------------------------------------------------------------------


def _encyclopedia(tasks: TasksParams, tools: ToolsParams, seed: int) -> Material:
    counts: dict[Split, int] = {"train": tasks.train, "dev": tasks.dev, "test": tasks.test}
    book = make_encyclopedia(tasks.encyclopedia, counts, seed=seed)
    return _planned(book.splits, book.paragraphs, tools, "generated")


def _own(tasks: TasksParams, tools: ToolsParams) -> Material:
    """Questions from a user's own source."""
    source: QuestSource = make_own(tasks.source, QuestSource)
    counts: dict[Split, int] = {"train": tasks.train, "dev": tasks.dev, "test": tasks.test}
    splits = {name: _first(source.quests(name, count), count, name) for name, count in counts.items()}
    return _planned(splits, source.paragraphs(), tools, tasks.source)


def _planned(
    quests: Mapping[Split, Sequence[Quest]], paragraphs: Sequence[Paragraph], tools: ToolsParams, file: str
) -> Material:
    """Questions with plans; their experts search with the policy's search tool."""
    search = LocalSearch(paragraphs, setup=tools.setup, k1=tools.k1, b=tools.b, cut=tools.cut)
    experts, audit = scripted_experts(quests["train"], search, file=file)
    splits = {name: [quest.question for quest in quests[name]] for name in SPLITS}
    splits["train"] = [expert.question for expert in experts]
    return Material(splits, experts, list(paragraphs), audit)


def _chat(tasks: TasksParams) -> Material:
    """Plain SPIN's prompts and answers: dev and test from the folder's test rows, training from its train rows."""
    folder = Path(tasks.file or "")
    train, test = (read_chats(folder, split) for split in ("train", "test"))
    experts = _first(train, tasks.train, "train")
    held = _first(test, tasks.test + tasks.dev, "test and dev")
    splits: dict[Split, list[Question]] = {
        "train": [expert.question for expert in experts],
        "dev": [expert.question for expert in held[tasks.test :]],
        "test": [expert.question for expert in held[: tasks.test]],
    }
    return Material(splits, experts, [], ExpertAudit(file=folder.name, read=len(train), kept=len(experts)))


def _hotpotqa(
    tasks: TasksParams, tools: ToolsParams, download: Path, mirror: Path | None, *, searched: bool
) -> Material:
    """Real questions: FireAct's experts, or scripted ones on questions with known paragraphs, and dev questions.

    The test split is dev 0..499, whose paragraphs are in the corpus. FireAct's own sample (the first 500 of the
    shuffled dev order) is ``other: {task: hotpotqa, split: dev}``, without paragraphs (docs/spin.md, S40). Paragraphs,
    which no server offers, are required only if a split, an expert or a tool (``searched``) needs them.
    """
    if searched or tasks.other is None or tasks.dev or tasks.experts != "gpt-4":
        known = _Contexts.read(fetch("hotpotqa_contexts", download, mirror=mirror))
    else:
        known = _Contexts([], [], [], [])
    experts: list[Expert] = []
    audit: ExpertAudit | None = None
    if tasks.experts in ("gpt-4", "both"):
        file = Path(tasks.expert_file) if tasks.expert_file else fetch("fireact", download, mirror=mirror)[0]
        experts, audit = read_experts(file)
    if tasks.experts in ("scripted", "both"):
        search = LocalSearch(known.corpus, setup=tools.setup, k1=tools.k1, b=tools.b, cut=tools.cut)
        asked = {folded(expert.question.question) for expert in experts}
        quests = [hotpotqa_quest(one) for one in known.train if folded(one.question) not in asked]
        scripted, own = scripted_experts(quests, search)
        experts, audit = experts + scripted, audit.joined(own) if audit else own
    assert audit is not None  # tasks.experts names at least one of the two
    experts = _first(experts, tasks.train, "train")
    splits: dict[Split, list[Question]] = {
        "train": [expert.question for expert in experts],
        "dev": _first(known.hard, tasks.dev, "dev"),
        "test": _first(known.dev, tasks.test, "test") if tasks.other is None else [],
    }
    return Material(splits, experts, known.corpus, audit)


@dataclass(frozen=True)
class _Contexts:
    """HotpotQA's questions with known paragraphs: dev 0 to 499, hard ones of dev beyond them, some of train."""

    dev: list[Question]
    hard: list[Question]
    train: list[Question]
    corpus: list[Paragraph]

    @classmethod
    def read(cls, files: Sequence[Path]) -> _Contexts:
        """Read the files of the source ``hotpotqa_contexts``."""
        found = {path.name: path for path in files}
        dev, train, hard = (
            list(read_records(found[name]))
            for name in ("dev500_questions.jsonl", "train300_context.jsonl", "dev_hard100_context.jsonl")
        )
        hard = [(place, row) for place, row in hard if row["idx"] >= len(dev)]
        corpus = {one.title: one for one in read_corpus(found["dev500_corpus.jsonl"])}
        for one in context_paragraphs([*train, *hard]):
            corpus.setdefault(one.title, one)

        def questions(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> list[Question]:
            return [read_question(row, place) for place, row in rows]

        return cls(questions(dev), questions(hard), questions(train), list(corpus.values()))


def _other(other: OtherTask, download: Path, mirror: Path | None) -> list[Question]:
    """Another data set's questions, from a user's folder or from its declared source.

    Raises:
        UserError: neither is available.
    """
    folder = Path(other.folder) if other.folder else download
    if other.folder is None:
        source = f"{other.task}_train" if (other.task, other.split) == ("strategyqa", "train") else other.task
        if source not in load_sources():
            raise UserError(
                f"spin.tasks.other: {other.task} has no entry in data/sources.yaml; set folder to the folder of its "
                "files."
            )
        fetch(source, folder, mirror=mirror)
    return load_questions(other.task, other.split, folder)


def bring_snippets(tools: Sequence[ToolsParams | None], folder: Path, *, download: Path, mirror: Path | None) -> None:
    """Copy FireAct's search snippets to ``folder`` if a tool replays them and has no file of its own."""
    if any(_replays(one) for one in tools if one is not None):
        (snippets,) = fetch("fireact_snippets", download, mirror=mirror)
        copyfile(snippets, folder / SNIPPETS)


def open_tools(cfg: ToolsParams, form: Format, folder: Path, corpus: Path) -> Tools:
    """The tools of an episode; a replaying tool reads the snippets that ``bring_snippets`` copied to ``folder``.

    Raises:
        UserError: as ``make_tools``.
    """
    if form == "reply":  # plain SPIN has no tools
        return Tools({}, concurrency=1, timeout=1, longest=1)
    return make_tools(cfg.model_copy(update={"snippets": str(folder / SNIPPETS)}) if _replays(cfg) else cfg, corpus)


def tool_modules(cfg: ToolsParams) -> list[str]:
    """Files of the modules with a user's own tools, which params name as module:function."""
    files: list[str] = []
    for behind in cfg.use.values():
        module, own, _ = behind.partition(":")
        with suppress(ImportError):  # reported when the tools are opened
            spec = importlib.util.find_spec(module) if own else None
            files += [spec.origin] if spec and spec.origin else []
    return files


def _replays(tools: ToolsParams) -> bool:
    return "replay" in tools.use.values() and tools.snippets is None


def _first(things: Sequence[Any], count: int, name: str) -> list[Any]:
    if count > len(things):
        raise UserError(f"spin.tasks.{name}: {count} are requested, but only {len(things)} exist; request fewer.")
    return list(things[:count])
