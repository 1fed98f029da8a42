"""Questions about files, asked by a language model that is shown one file at a time (docs/reflect-rl.md, L37).

What it is shown of ``core/hub.py``, below the instructions for code, and what it answers::

    Repository: eventlib
    File: core/hub.py
    Content:
    \"\"\"Where events meet.\"\"\"
    class Hub: ...

    QUERY: Where are events passed on to those who asked for them?
    ANSWER: The publish method of the class Hub calls each subscriber.
    QUERY: Which part of the library repeats old events?
    ANSWER: The function replay publishes every event once more.

Each pair becomes a task whose target is the file. Which files are shown follows the original: at most 100 a repository,
drawn by the seed, at most two folders deep; excerpts of 50 to 2000 tokens, of a table its first 20 lines; one prompt
each for code, text and data, in our own wording. The original's parser loses the digits of answers and keeps
duplicates, and its pattern for build outputs also drops "layout"; this one does not.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import Literal, NamedTuple

from selfimprove.core.errors import UserError
from selfimprove.core.records import Message
from selfimprove.core.seeds import SeedKey
from selfimprove.engines.base import Engine, EngineError, Request
from selfimprove.envs.autoexplore.questions import DATA_LINES, MAX_FILES, MAX_LEVEL, MIN_TOKENS, asked_about, read_text
from selfimprove.envs.autoexplore.repos import Repo
from selfimprove.envs.autoexplore.tasks import Task, optimal_path
from selfimprove.envs.autoexplore.truncation import CODE_SUFFIXES, DATA_SUFFIXES, SHELL_SUFFIXES, first_tokens
from selfimprove.envs.params import Asking

MAX_TOKENS = 2000  # of an excerpt
QUESTION_LIMIT, ANSWER_LIMIT = 400, 800  # characters; a model that rambles asks nothing

Kind = Literal["code", "text", "data"]

_FORM = """
Write {pairs} pairs, each in these two lines and nothing else:
QUERY: the question, in one sentence
ANSWER: the answer, in one or two sentences
Ask what somebody would ask who has never seen the file. A question must not contain the file's name or path, must be \
understood without the file at hand, and must not fit other files of the repository as well."""

PROMPTS: Mapping[Kind, str] = {
    "code": """\
Below is a source file of a repository. Think of a developer who wants to change, fix or reuse something that this \
file is responsible for, and who has to find the place first: a behaviour, an error message, a default value, the \
way two parts work together. Describe what it does rather than what it is called."""
    + _FORM,
    "text": """\
Below is a document of a repository: a guide, notes or settings. Think of a user who needs a piece of information \
that only this document gives: how to do something, what is supported, what a setting means, why something was \
decided. Ask for that information."""
    + _FORM,
    "data": """\
Below are the first lines of a table of a repository. Think of an analyst who needs data of this kind and doesn't know \
whether the repository has any: which quantities, of what, over which time or place. Ask for the data, not for a \
single value."""
    + _FORM,
}


class Excerpt(NamedTuple):
    """What a model is shown of a file; ``tokens`` of its text at most ``MAX_TOKENS``."""

    path: str
    kind: Kind
    text: str


class QuestionAnswer(NamedTuple):
    """A question and its answer."""

    query: str
    answer: str


def kind_of(path: str) -> Kind:
    """Which prompt a file gets. Scripts count as code."""
    if path.endswith((*CODE_SUFFIXES, *SHELL_SUFFIXES)):
        return "code"
    return "data" if path.endswith(DATA_SUFFIXES) else "text"


def excerpts(repo: Repo, seed: int, max_files: int = MAX_FILES, max_level: int = MAX_LEVEL) -> Iterator[Excerpt]:
    """The files to ask about, in drawn order, as far as they have at least ``MIN_TOKENS`` tokens."""
    for path in asked_about(repo, seed, max_files, max_level):
        kind, text = kind_of(path), read_text(repo, path)
        if kind == "data":
            text = "\n".join(text.split("\n")[:DATA_LINES])
        if first_tokens(text, MIN_TOKENS - 1) != text:  # it has more tokens than that
            yield Excerpt(path, kind, first_tokens(text, MAX_TOKENS))


def prompt(repo: Repo, excerpt: Excerpt, pairs: int) -> list[Message]:
    """What the model is asked."""
    asked = PROMPTS[excerpt.kind].format(pairs=pairs)
    shown = f"Repository: {repo.name}\nFile: {excerpt.path}\nContent:\n{excerpt.text}"
    return [Message(role="user", content=f"{asked}\n\n{shown}")]


# A label at the beginning of a line, however a chat model decorates it: "2. **QUERY 2:** ", "- Query: ", "### ANSWER:".
# Digits are taken away before the label only: an answer's own stay.
_LABEL = re.compile(
    r"^[ \t>#*_-]{0,8}(?:\(?\d{1,3}[.):][ \t]{0,4})?"
    r"[*_]{0,3}(QUERY|ANSWER)[ \t]{0,2}\d{0,3}[*_]{0,3}[ \t]{0,2}:[*_]{0,3}",
    re.IGNORECASE | re.MULTILINE,
)


def parse_pairs(text: str) -> list[QuestionAnswer]:
    """The pairs in a model's answer, each question once, in order.

    A QUERY counts with the ANSWER that follows it next; one without, an empty one, and one that is too long are left
    out. Lines are joined, quotes around the whole and lines that fence taken away, digits kept.
    """
    marks = list(_LABEL.finditer(text))
    ends = [*(mark.start() for mark in marks[1:]), len(text)]
    parts = [(mark[1].upper(), _plain(text[mark.end() : end])) for mark, end in zip(marks, ends, strict=False)]
    pairs: dict[str, QuestionAnswer] = {}
    for (label, query), (next_label, answer) in pairwise(parts):
        paired = (label, next_label) == ("QUERY", "ANSWER") and query and answer
        if paired and len(query) <= QUESTION_LIMIT and len(answer) <= ANSWER_LIMIT:
            pairs.setdefault(_same(query), QuestionAnswer(query, answer))
    return list(pairs.values())


_BLANK_LINE = re.compile(r"\n[ \t\r]*\n")
_FENCE = re.compile(r"^[ \t]*(?:```|~~~)\w*[ \t\r]*$", re.MULTILINE)


def _plain(text: str) -> str:
    """One line of what can be printed, without fences, and without quotes around it if there are none like them inside.

    So ``'host' is set to 'local'`` stays as it is.
    """
    paragraph, *_ = _BLANK_LINE.split(_FENCE.sub("", text.strip()).strip(), 1)  # what a chat model adds after its pairs
    line = " ".join("".join(char if char.isprintable() else " " for char in paragraph).split())
    quoted = len(line) > 1 and line[0] in "'\"" and line[0] == line[-1] and line[0] not in line[1:-1]
    return line[1:-1].strip() if quoted else line


def _same(query: str) -> str:
    """Questions that differ in this only by case, blanks or the final sign are the same."""
    return query.casefold().rstrip("?.! ")


def names_file(query: str, path: str) -> bool:
    """Whether a question gives its target away: by the file's name or its path."""
    name = path.rpartition("/")[2]
    return re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", query, re.IGNORECASE) is not None


class Asked(NamedTuple):
    """The tasks of one excerpt. ``counts``: what became of the pairs; ``error``: why the engine failed, if it did."""

    tasks: list[Task]
    counts: Counter[str]
    error: str | None = None


async def make_llm_tasks(
    engine: Engine,
    repos: Mapping[str, Repo],
    seed: int,
    cfg: Asking = Asking(),  # noqa: B008 - never changed
    *,
    model: str,
    max_files: int = MAX_FILES,
    max_level: int = MAX_LEVEL,
    progress: Callable[[int, int], object] | None = None,
) -> Asked:
    """Tasks about all repositories, by repository and file, and counts of what became of the answers.

    ``model``: how the tasks name who asked. The engine batches the requests, one a file; each draws from its own key.
    ``progress``: called after every answer with their number so far, and the total.

    Raises:
        UserError: no file is long enough, no answer held a usable pair, the engine failed at each file, or it can't
            work at all.
    """
    shown = {
        (name, excerpt.path): (repos[name], excerpt)
        for name in sorted(repos)
        for excerpt in excerpts(repos[name], seed, max_files, max_level)
    }
    if not shown:
        raise UserError(
            f"autoexplore: no file of {', '.join(sorted(repos)) or 'no repository'} has the {MIN_TOKENS} tokens that "
            "questions need; name other repositories."
        )
    done = 0

    async def one(repo: Repo, excerpt: Excerpt) -> Asked:
        nonlocal done
        asked = await ask_about(engine, repo, excerpt, cfg, model=model, seed=seed)
        done += 1
        if progress is not None:
            progress(done, len(shown))
        return asked

    try:
        async with asyncio.TaskGroup() as group:
            asked = {place: group.create_task(one(repo, excerpt)) for place, (repo, excerpt) in shown.items()}
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
    return gather({place: task.result() for place, task in asked.items()})


async def ask_about(engine: Engine, repo: Repo, excerpt: Excerpt, cfg: Asking, *, model: str, seed: int) -> Asked:
    """One request about one file, and the tasks that its answer holds.

    An engine that fails at this one, or whose context is too short for it, costs its tasks and no others.

    Raises:
        UserError: the engine can't work at all.
    """
    messages = prompt(repo, excerpt, cfg.pairs)
    if not engine.fits(messages, cfg.max_tokens):
        return Asked([], Counter({"files": 1, "too long": 1}))
    key = SeedKey(seed, f"autoexplore question {repo.name} {excerpt.path}")
    request = Request(messages, key, temperature=cfg.temperature, top_p=cfg.top_p, max_tokens=cfg.max_tokens)
    try:
        [completion] = await engine.generate(request)
    except EngineError as failure:
        return Asked([], Counter({"files": 1, "failed": 1}), str(failure))
    found = parse_pairs(completion.text)
    fair = [pair for pair in found if not names_file(pair.query, excerpt.path)]
    counts = Counter({"files": 1, "pairs": len(found), "naming the file": len(found) - len(fair)})
    counts["answers without pairs"] = int(not found)
    return Asked([_task(repo, excerpt.path, pair, model) for pair in fair[: cfg.pairs]], counts)


def _task(repo: Repo, path: str, pair: QuestionAnswer, model: str) -> Task:
    return Task(
        question=pair.query,
        answer=pair.answer,
        optimal_path=optimal_path(path),
        filename=path,
        root=repo.name,
        n_level=path.count("/"),
        model=model,
    )


def gather(asked: Mapping[tuple[str, str], Asked]) -> Asked:
    """All answers together, by repository and file: a question that a repository was asked twice has no one target.

    Raises:
        UserError: no answer held a pair, or there was no answer.
    """
    counts: Counter[str] = Counter()
    tasks: list[Task] = []
    error = None
    for _, (found, counted, failure) in sorted(asked.items()):
        tasks += found
        counts.update(counted)
        error = error or failure
    times = Counter((task.root, _same(task.question)) for task in tasks)
    unique = [task for task in tasks if times[task.root, _same(task.question)] == 1]
    counts["duplicates"] = len(tasks) - len(unique)
    counts["tasks"] = len(unique)
    if counts["failed"] == counts["files"]:
        raise UserError(
            f"autoexplore: the teacher failed on all {counts['files']} files ({error}); check its endpoint and run "
            "again."
        )
    if not unique:
        raise UserError(
            f"autoexplore: the teacher's answers about {counts['files']} files contain no usable QUERY and ANSWER; "
            "choose another model, or set reflect_rl.tasks.teacher to null for templates."
        )
    return Asked(unique, counts, error)
