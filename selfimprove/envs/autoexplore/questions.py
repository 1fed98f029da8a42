"""Questions about files, generated without a model from docstrings, headings, table columns and settings.

Every file is searched for facts that identify it (``class Hub``, the heading "Installing", the columns year, city). A
fact that no other file of the repository shares becomes a question with one right answer. The selection of files
follows the original (docs/reflect-rl.md, L37): at most 100 per repository, drawn by the seed, at most two folders deep,
with at least 50 tokens, and no tests or build outputs, recognised by whole words of the path.
"""

import ast
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from selfimprove.core.errors import UserError
from selfimprove.core.seeds import rng
from selfimprove.envs.autoexplore.repos import LOOKED_AT, Repo
from selfimprove.envs.autoexplore.tasks import Task, optimal_path, reachable
from selfimprove.envs.autoexplore.truncation import (
    CODE_SUFFIXES,
    DATA_SUFFIXES,
    SHELL_SUFFIXES,
    TEXT_SUFFIXES,
    token_count,
)

MAX_FILES = 100  # per repository
MAX_LEVEL = 2  # folders deep
MIN_TOKENS = 50
DATA_LINES = 20  # of a table that are read
SENTENCE_LIMIT = 140  # characters of a docstring quoted in a question
MODEL = "template"  # recorded as the author

_UNASKED = re.compile(r"(?:^|[/_.-])(?:(?:conf|py|unit)?tests?\d*|testing|testdata|out|output|outputs)(?:$|[/_.-])")


class Fact(NamedTuple):
    """A fact about a file: its kind, its name, and a sentence on it ("": none)."""

    kind: str
    name: str
    detail: str = ""


_ASK: dict[str, tuple[str, ...]] = {
    "class": (
        "Which file defines the class {name}?",
        "Where is the class {name} implemented?",
        "Find the code of the class {name}.",
    ),
    "function": (
        "Which file defines the function {name}?",
        "Where is the function {name} implemented?",
        "I want to change the function {name}. Which file is it in?",
    ),
    "module": ("Which file is about this? {name}", "Find the module described as: {name}"),
    "heading": ('Which document has a section called "{name}"?', 'Where can I read the section "{name}"?'),
    "columns": ("Which table has the columns {name}?", "I need data on {name}. Which file has it?"),
    "key": ('Which file sets "{name}"?', 'Where is the value of "{name}" kept?'),
}
_ASK_WITH_DETAIL: dict[str, tuple[str, ...]] = {
    "class": (
        "Which file defines the class {name}, described as: {detail}",
        "I need a class for this: {detail} It is called {name}. Which file is it in?",
    ),
    "function": (
        "Which file defines the function {name}, described as: {detail}",
        "I need a function for this: {detail} It is called {name}. Which file is it in?",
    ),
}
_ANSWER = {
    "class": "{filename} defines the class {name}.",
    "function": "{filename} defines the function {name}.",
    "module": "{filename} is described so.",
    "heading": '{filename} has the section "{name}".',
    "columns": "{filename} has the columns {name}.",
    "key": '{filename} sets "{name}".',
}


def make_tasks(
    repos: Mapping[str, Repo], seed: int, per_file: int = 2, max_files: int = MAX_FILES, max_level: int = MAX_LEVEL
) -> list[Task]:
    """Tasks about all repositories: by name of the repository, then in the drawn order of their files.

    ``per_file``: maximum questions per file. Equal seed and folders give equal tasks on every machine.

    Raises:
        UserError: no file of any repository contains a fact to ask about.
    """
    tasks = [task for name in sorted(repos) for task in _of_repo(repos[name], seed, per_file, max_files, max_level)]
    if not tasks:
        raise UserError(
            f"no questions can be generated about {', '.join(sorted(repos)) or 'no repository'}; name a folder whose "
            "files have docstrings, headings, columns or settings."
        )
    return tasks


def asked_about(repo: Repo, seed: int, max_files: int = MAX_FILES, max_level: int = MAX_LEVEL) -> list[str]:
    """The files to ask questions about, in drawn order, each once."""
    files = [
        path
        for path in repo.files
        if path.count("/") <= max_level and not _UNASKED.search(path) and reachable(repo, path)
    ]
    rng("autoexplore files", seed, repo.name).shuffle(files)
    return files[:max_files]


def _of_repo(repo: Repo, seed: int, per_file: int, max_files: int, max_level: int) -> Iterator[Task]:
    texts = {path: read_text(repo, path) for path in repo.files}
    facts = {path: list(dict.fromkeys(find_facts(path, text))) for path, text in texts.items()}
    shared = Counter((fact.kind, fact.name.lower()) for found in facts.values() for fact in found)
    for path in asked_about(repo, seed, max_files, max_level):
        if token_count(texts[path]) < MIN_TOKENS:
            continue
        own = [fact for fact in facts[path] if shared[fact.kind, fact.name.lower()] == 1]
        draws = rng("autoexplore questions", seed, repo.name, path)
        details = docstrings(texts[path]) if path.endswith(".py") else {}
        for fact in draws.sample(own, min(per_file, len(own))):
            fact = fact._replace(detail=details.get(fact.name, ""))
            asks = _ASK_WITH_DETAIL[fact.kind] if fact.detail and fact.kind in _ASK_WITH_DETAIL else _ASK[fact.kind]
            yield Task(
                question=draws.choice(asks).format(name=fact.name, detail=fact.detail),
                answer=_ANSWER[fact.kind].format(filename=path, name=fact.name),
                optimal_path=optimal_path(path),
                filename=path,
                root=repo.name,
                n_level=path.count("/"),
                model=MODEL,
            )


def read_text(repo: Repo, path: str) -> str:
    """A file's text; "" if it can no longer be read."""
    try:
        return repo.tree.read(path, LOOKED_AT)[0].decode("utf-8", "replace")
    except OSError:
        return ""


_PYTHON = re.compile(r"^(?:async )?(class|def) ([A-Za-z]\w+)", re.MULTILINE)
_OTHER_CODE = re.compile(
    r"^\s{0,8}(?:(?:public|private|static|final|export|abstract|typedef) )*(class|struct|interface|enum|func) "
    r"([A-Za-z]\w{2,})",
    re.MULTILINE,
)
_SHELL = re.compile(r"^(?:function )?([A-Za-z]\w{2,}) ?\(\)", re.MULTILINE)
_HASH_HEADING = re.compile(r"^#{1,4} +(\w[^\n#]{2,60}?) *#*$", re.MULTILINE)
_UNDERLINED = re.compile(r"^(\w[^\n]{2,60})\n(?:={3,}|-{3,}|~{3,})$", re.MULTILINE)
_KEY = re.compile(r'^(?:[ \t]{0,4}"([A-Za-z][\w-]{2,40})"|([A-Za-z][\w-]{2,40}))[ ]*:', re.MULTILINE)


def find_facts(path: str, text: str) -> Iterator[Fact]:
    """The facts in a file, found by patterns; only those that fit on one line of plain ASCII."""
    for fact in _facts(path, text):
        if fact.name.isascii() and fact.name.isprintable():
            yield fact


def _facts(path: str, text: str) -> Iterator[Fact]:
    if path.endswith(".py"):
        for kind, name in _PYTHON.findall(text):
            yield Fact("class" if kind == "class" else "function", name)
        if (opening := _OPENING.match(text)) and (first := _sentence(opening[2])):
            yield Fact("module", first)
    elif path.endswith(SHELL_SUFFIXES):
        yield from (Fact("function", name) for name in _SHELL.findall(text))
    elif path.endswith(DATA_SUFFIXES):
        yield from _columns(path, text)
    elif path.endswith((".json", ".yaml", ".yml", ".ipynb")):
        yield from (Fact("key", quoted or plain) for quoted, plain in _KEY.findall(text))
    elif path.endswith(TEXT_SUFFIXES):
        yield from (Fact("heading", name.strip()) for name in _UNDERLINED.findall(text))
        yield from (Fact("heading", name.strip()) for name in _HASH_HEADING.findall(text))
    elif path.endswith(CODE_SUFFIXES):
        for kind, name in _OTHER_CODE.findall(text):
            yield Fact("function" if kind == "func" else "class", name)


def _columns(path: str, text: str) -> Iterator[Fact]:
    """A table's columns if its first line contains their names: at least two, of which the first four are used."""
    lines = [line for line in text.split("\n")[:DATA_LINES] if line.strip()]
    first, between = lines[0] if lines else "", "\t" if path.endswith(".tsv") else ","
    cells = [cell.strip().strip('"') for cell in first.split(between)]
    names = [cell for cell in cells if re.fullmatch(r"[A-Za-z][\w ]{0,30}", cell)]
    if len(lines) > 1 and len(names) == len(cells) > 1:
        yield Fact("columns", ", ".join(names[:4]))


_OPENING = re.compile(r"\A(?:\s++|#[^\n]*+)*+[rR]?(\"\"\"|''')(.*?)\1", re.DOTALL)


def _sentence(text: str) -> str:
    """The first sentence of a docstring, on one line; "" if it is too short, too long or not plain text."""
    paragraph = " ".join(text.strip().split("\n\n", 1)[0].split())
    sentence = re.split(r"(?<=[.!?]) ", paragraph, maxsplit=1)[0]
    if sentence and sentence[-1] not in ".!?":
        sentence += "."
    plain = sentence.isascii() and sentence.isprintable()
    return sentence if plain and 12 <= len(sentence) <= SENTENCE_LIMIT else ""


def docstrings(text: str) -> dict[str, str]:
    """First sentences of the docstrings of a Python file's top-level classes and functions. Parsed, never executed."""
    try:
        with warnings.catch_warnings(action="ignore"):  # about invalid escapes in the file
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    found = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name] = _sentence(ast.get_docstring(node) or "")
    return found
