"""Exports search trees to the original's nested JSON, and imports them (docs/agent-r.md, A44).

    python -m selfimprove.interop.agent_r trees        trees.jsonl mcts_result/textcraft/base
    python -m selfimprove.interop.agent_r import-trees mcts_result/textcraft/base trees.jsonl --env textcraft

and conversations and results: ``conversations``, ``import-conversations`` and ``results``.

Each tree is one file, ``search_results_<task>.json``, with each node nested in its parent. Every node contains its
whole conversation (``state``), rebuilt on export, so that the original's scripts can read it. The format has exactly
the original's fields (its loader refuses others). Lost are: token ids, how replies ended, whether the environment
understood an action, how much a prompt left out, the seed, the counts of dives and duplicates, why a search was
blocked, and the order in which nodes were created.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import typer
from pydantic import ConfigDict, Field, ValidationError, field_validator

from selfimprove.core.cli import run
from selfimprove.core.errors import UserError, fault, meant
from selfimprove.core.publish import aside, write_json
from selfimprove.core.records import (
    Episode,
    Example,
    Message,
    Record,
    Role,
    load_json,
    read_jsonl,
    read_records,
    write_jsonl,
    write_rows,
)
from selfimprove.envs.params import TextParams
from selfimprove.envs.registry import playable
from selfimprove.methods.agent_r import formats
from selfimprove.methods.agent_r.acting import task_of
from selfimprove.methods.agent_r.metrics import eval_row
from selfimprove.methods.agent_r.prompts import OPENING, check_opening
from selfimprove.methods.agent_r.reply import parse_action
from selfimprove.methods.agent_r.search import uct
from selfimprove.methods.agent_r.tree import Node, Tree, turn_messages

ROOT = "ROOT"
"""The root's reply and action in the original's files."""
COEFFICIENT = 0.25
"""The original's weight of the UCT bonus, for ``puct_value``."""

_FILE = re.compile(r"search_results_(\d+)\.json")


def to_json(tree: Tree, exploration: float = COEFFICIENT) -> dict[str, Any]:
    """The root in the original's format, with its children nested. Scores are normalised to [0, 1], as everywhere here.

    Raises:
        UserError: the tree has no conversation (its episode was blocked before it began).
    """
    if not tree.prompt:
        raise UserError(f"tree {tree.id} was blocked before it began, so there is nothing to export; remove it.")
    built: list[dict[str, Any]] = []
    for node in tree.nodes:  # parents precede their children
        parent = None if node.parent is None else tree.nodes[node.parent]
        if node.parent is None:
            state = [_plain(message) for message in tree.prompt]
            recent = _pairs(tree.prompt)
        else:
            above = built[node.parent]
            state = above["state"] + [_plain(message) for message in turn_messages(node)]
            recent = [*above["recent_actions"], [node.action, node.observation]]
        entry = {
            "visits": node.visits,
            "value": node.value,
            "prior": 1,
            "puct_value": uct(node, parent, exploration),
            "obs": node.observation,
            "llm_response": ROOT if parent is None else node.reply,
            "depth": node.depth,
            "is_terminal": node.terminal,
            "recent_actions": recent,
            "action": ROOT if parent is None else node.action,
            "env_score": node.reward,
            "disaster": node.disaster,
            "state": state,
            "children": [],
        }
        built.append(entry)
        if node.parent is not None:
            built[node.parent]["children"].append(entry)
    return built[0]


class _Spoken(Record):
    model_config = ConfigDict(extra="ignore")

    role: Role
    content: str


class _Entry(Record):
    """A node of the original's file; derivable fields (``state`` below the root, ``puct_value``) are not read.

    The children are validated one by one, because pydantic refuses more than 255 nested records.
    """

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    visits: int = Field(ge=0, le=2**53)
    value: float
    obs: str
    llm_response: str
    depth: int = Field(ge=0)
    is_terminal: bool
    action: str
    env_score: float
    disaster: bool
    children: list[Any]


class _Root(_Entry):
    state: list[_Spoken]

    @field_validator("state")
    @classmethod
    def _conversation(cls, state: list[_Spoken]) -> list[_Spoken]:
        check_opening([message.role for message in state])
        return state


def from_json(
    data: object, where: str, *, env: str, task_id: int, full_score: float = 1.0, max_depth: int | None = None
) -> Tree:
    """A tree from the original's JSON (or that of ``to_json``); nodes are numbered depth first.

    A negative score is a disaster, whose reward is 0.

    Args:
        where: the file's name in errors.
        full_score: divisor of the file's scores; 100 for the original's ScienceWorld trees.
        max_depth: the search's limit. Leaves below it count as cut off by it unless a disaster ended them (the format
            does not record this). None: every leaf counts as ended by the environment.

    Raises:
        UserError: a node does not fit the format or has a score above the full one (the message contains the field), or
            the full score is not a finite number above 0.
    """
    if not (math.isfinite(full_score) and full_score > 0):
        raise UserError(f"the full score is {full_score:g}; set --full-score to a finite number above 0.")
    root = _read(_Root, data, where)
    nodes: list[Node] = []
    stack: list[tuple[Any, int | None, str]] = [(data, None, "")]
    while stack:
        child, parent, place = stack.pop()
        entry = root if parent is None else _read(_Entry, child, where, place)
        index = len(nodes)
        nodes.append(_node(entry, parent, where, full_score, max_depth))
        if parent is not None:
            nodes[parent].children.append(index)
        places = (f"{place}.children.{position}".lstrip(".") for position in range(len(entry.children)))
        stack += [(child, index, at) for child, at in zip(entry.children, places, strict=True)][::-1]
    return Tree(
        id=f"{env}-{task_id}",
        env=env,
        task_id=task_id,
        prompt=[Message(role=message.role, content=message.content) for message in root.state],
        nodes=nodes,
        seed="",
        status="solved" if any(node.reward == 1 for node in nodes) else "unsolved",
    )


def _node(entry: _Entry, parent: int | None, where: str, full_score: float, max_depth: int | None) -> Node:
    """A node without children, with its scores in [0, 1]."""
    value, reward = entry.value / full_score, entry.env_score / full_score
    disaster = entry.disaster or entry.env_score < 0
    if not (math.isfinite(value) and math.isfinite(reward)):
        raise UserError(f"{where}: a value or env_score is too large to be divided by the full score; fix it.")
    if entry.env_score > full_score:
        raise UserError(
            f"{where}: field 'env_score': {entry.env_score:g} exceeds the full score {full_score:g}; set "
            "--full-score to the environment's (100 for ScienceWorld)."
        )
    ended = entry.is_terminal and not entry.children and (max_depth is None or entry.depth <= max_depth)
    return Node(
        parent=parent,
        reply="" if parent is None else entry.llm_response,
        action="" if parent is None else entry.action,
        observation=entry.obs,
        depth=entry.depth,
        visits=entry.visits,
        value=value,
        reward=max(0.0, reward),
        terminal=entry.is_terminal,
        done=ended or disaster,
        disaster=disaster,
    )


E = TypeVar("E", bound=_Entry)


def _read(kind: type[E], data: object, where: str, place: str = "") -> E:
    """A node of a file; ``place``: its location in the file, such as ``children.0.children.2``, for errors.

    Raises:
        UserError: the node does not fit the format.
    """
    try:
        return kind.model_validate(data)
    except ValidationError as error:
        raise UserError(f"{where}: {fault(error, place)}; fix or delete the file.") from None


def _plain(message: Message) -> dict[str, str]:
    return {"role": message.role, "content": message.content}


def _pairs(prompt: Sequence[Message]) -> list[list[str]]:
    """(action, observation) pairs of the turns given before the root."""
    given = prompt[OPENING:]
    return [
        [parse_action(reply.content), answer.content] for reply, answer in zip(given[::2], given[1::2], strict=True)
    ]


app = typer.Typer(
    add_completion=False, help="Trees, conversations and results in the original's formats.", no_args_is_help=True
)


@app.command("trees")
def export_trees(
    source: Annotated[Path, typer.Argument(help="trees.jsonl")],
    folder: Annotated[Path, typer.Argument(help="output folder of search_results_<task>.json")],
) -> None:
    """Trees (JSONL) to one file per tree; trees that were blocked before they began are skipped."""
    trees = [tree for tree in read_jsonl(source, Tree) if tree.prompt]
    if not trees:
        raise UserError(f"{source} contains no tree that began; run the search again, or name another file.")
    counts = Counter(tree.task_id for tree in trees)
    twice = next((task for task, count in counts.items() if count > 1), None)
    if twice is not None:
        raise UserError(f"{source}: task {twice} has several trees, but the format has one file per task; keep one.")
    for tree in trees:
        try:
            write_json(folder / f"search_results_{tree.task_id}.json", to_json(tree))
        except RecursionError:
            depth = max(node.depth for node in tree.nodes)
            raise UserError(
                f"{source}: tree {tree.id} has paths of {depth} actions, too many for the nested format; lower the "
                "search's max_depth."
            ) from None


@app.command("import-trees")
def import_trees(
    folder: Annotated[Path, typer.Argument(help="folder with search_results_<task>.json")],
    target: Annotated[Path, typer.Argument(help="output file (trees.jsonl)")],
    env: Annotated[str, typer.Option(help="the environment's name in trees: textcraft, webshop, sciworld, …")],
    full_score: Annotated[
        float, typer.Option(min=1e-9, help="maximum score; 100 for the original's ScienceWorld trees")
    ] = 1.0,
    max_depth: Annotated[int | None, typer.Option(min=0, help="MAX_DEPTH of the search")] = None,
) -> None:
    """One file per tree to trees (JSONL), ordered by task."""
    files: dict[int, Path] = {}
    for path in sorted(folder.glob("*")):
        if found := _FILE.fullmatch(path.name):
            other = files.setdefault(int(found[1]), path)
            if other != path:
                raise UserError(f"{folder}: {other.name} and {path.name} belong to the same task; remove one of them.")
    if not files:
        raise UserError(f"{folder} contains no search_results_<task>.json; name the output folder of the search.")
    trees = []
    for task, path in sorted(files.items()):
        data = load_json(path)
        trees.append(from_json(data, str(path), env=env, task_id=task, full_score=full_score, max_depth=max_depth))
    with aside(target) as part:
        write_jsonl(part, trees)
    known = [name for name in playable(TextParams) if ":" not in name]
    if env not in known and (guess := meant(env, known, "")):  # another name may be that of a user's own class
        typer.echo(f"--env: no environment of this package is called {env!r}; {guess}")


_To = Literal["xtuner", "openai"]
_From = Literal["xtuner", "openai", "log"]


@app.command("conversations")
def export_conversations(
    source: Annotated[Path, typer.Argument(help="examples.jsonl")],
    target: Annotated[Path, typer.Argument(help="output file (JSONL)")],
    to: Annotated[_To, typer.Option(help="xtuner: turns with output_with_loss; openai: messages with loss")] = "openai",
) -> None:
    """Training examples (JSONL) to conversations, each reply with its loss flag."""
    write = {"xtuner": formats.to_xtuner, "openai": formats.to_openai}[to]
    rows = [write(example) for example in read_jsonl(source, Example)]
    with aside(target) as part:
        write_rows(part, rows)


@app.command("import-conversations")
def import_conversations(
    source: Annotated[Path, typer.Argument(help="JSONL of conversations, or a .json file with a list of them")],
    target: Annotated[Path, typer.Argument(help="output file (examples.jsonl)")],
    form: Annotated[
        _From, typer.Option("--from", help="format of the source; log: the original's pair or good log")
    ] = "openai",
) -> None:
    """Conversations to training examples; weights are 1 where the loss flag is set, else 0."""
    read = {"xtuner": formats.from_xtuner, "openai": formats.from_openai, "log": formats.from_log}[form]
    examples = [read(row, place) for place, row in read_records(source)]
    with aside(target) as part:
        write_jsonl(part, examples)


@app.command("results")
def export_results(
    source: Annotated[Path, typer.Argument(help="episodes.jsonl of an evaluation")],
    target: Annotated[Path, typer.Argument(help="output file (JSONL)")],
    model: Annotated[str, typer.Option(help="model_name of every row")],
    revised: Annotated[
        bool, typer.Option(help="export the episodes from given bad beginnings instead of the complete ones")
    ] = False,
) -> None:
    """Episodes (JSONL) to the original's result rows: task_id, env_score, model_name, step_num, state."""
    episodes = [one for one in read_jsonl(source, Episode) if revised == task_of(one.id)[1]]
    if not episodes:
        which = "from given beginnings; omit" if revised else "without a given beginning; add"
        raise UserError(f"{source} contains no episodes {which} --revised, or name another file.")
    with aside(target) as part:
        write_rows(part, [eval_row(episode, model) for episode in episodes])


if __name__ == "__main__":
    run(app)
