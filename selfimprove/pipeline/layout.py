"""Changes values in a YAML file while keeping all other lines and their comments."""

import re
from collections.abc import Mapping
from io import StringIO
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.scalarstring import DoubleQuotedScalarString
from ruamel.yaml.tokens import AliasToken

from selfimprove.core.errors import UserError

WIDTH = 120
_ALIAS = re.compile(r"\*\w")
_WORDS = re.compile(r"[A-Za-z0-9_./-]+( [A-Za-z0-9_./-]+)*")


def rewritten(text: str, value: Mapping[str, Any]) -> str:
    """A file's text with its content replaced by ``value``; lines whose values do not change are kept.

    Args:
        text: a YAML block mapping.
        value: the new content, as plain objects.

    Raises:
        UserError: as ``changeable``, or the text is laid out in a way that would change more than the values.
    """
    node = changeable(text)
    lines = text.splitlines()
    changed = "".join(f"{line}\n" for line in _block(lines, 0, len(lines), node, value))
    if _read(changed) != _plain(value):
        raise UserError(
            "params.yaml: its lines can't be changed one by one, perhaps because of unusual line breaks; nothing was "
            "written. Edit the value yourself."
        )
    return changed


def changeable(text: str) -> CommentedMap:
    """The content of a file's text with the places of its keys.

    Raises:
        UserError: the text has an alias, so that a key cannot be changed alone, or is no YAML to this stricter parser:
            libyaml, which reads the params otherwise, accepts a tab after a value.
    """
    yaml = YAML()
    yaml.preserve_quotes = True
    try:
        aliases = [one for one in YAML().scan(text) if isinstance(one, AliasToken)] if _ALIAS.search(text) else []
        node: CommentedMap = yaml.load(text)
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else "?"
        raise UserError(f"params.yaml, line {line}: not YAML ({error.problem}); correct the line.") from None
    if aliases:
        raise UserError(
            f"params.yaml, line {aliases[0].start_mark.line + 1}: the alias *{aliases[0].value} stands for a value "
            "elsewhere and can't be changed alone; write the value out in its place."
        )
    return node


def _read(text: str) -> Any:
    try:
        return _plain(YAML(typ="safe").load(text))
    except YAMLError:
        return None


def _block(lines: list[str], start: int, end: int, node: CommentedMap, value: Mapping[str, Any]) -> list[str]:
    """Lines [start, end), which consist of the block mapping ``node``, rewritten to represent ``value``."""
    places = [(node.lc.key(key)[0], key) for key in node]
    column = node.lc.key(next(iter(node)))[1]
    out = lines[start : places[0][0]]
    for (first, key), (after, _) in zip(places, [*places[1:], (end, None)], strict=True):
        body = _without_tail(lines, first, after)
        inner = node[key]
        if key not in value:
            pass
        elif _plain(inner) == _plain(value[key]):
            out += lines[first:body]
        elif _is_block(inner, first) and isinstance(value[key], Mapping) and value[key]:
            out += [lines[first], *_block(lines, first + 1, body, inner, value[key])]
        else:
            out += _dumped(key, value[key], column, in_braces=isinstance(inner, CommentedMap) and inner.fa.flow_style())
        if after == end:
            out += [line for new in value if new not in node for line in _dumped(new, value[new], column)]
        out += lines[body:after]
    return out


def _without_tail(lines: list[str], first: int, after: int) -> int:
    """The end of an entry's own lines; trailing blank lines and comments belong to the next entry."""
    while after > first + 1 and (not lines[after - 1].strip() or lines[after - 1].lstrip().startswith("#")):
        after -= 1
    return after


def _is_block(node: Any, line: int) -> bool:
    """Whether a value is a block mapping, whose entries are on the lines below its key."""
    if not isinstance(node, CommentedMap) or not node or node.fa.flow_style():
        return False
    return bool(node.lc.key(next(iter(node)))[0] > line)


def _dumped(key: str, value: Any, column: int, *, in_braces: bool = False) -> list[str]:
    """An entry's lines. ``in_braces``: write a mapping in braces, as before; otherwise only one of plain values is."""
    yaml = YAML()
    yaml.default_flow_style = None
    yaml.width = WIDTH - column
    yaml.representer.ignore_aliases = lambda *_: True
    yaml.representer.add_representer(type(None), lambda it, _: it.represent_scalar("tag:yaml.org,2002:null", "null"))
    inner = _plain(value)
    if in_braces and isinstance(inner, dict):
        inner = CommentedMap(inner)
        inner.fa.set_flow_style()
    entry = CommentedMap({key: inner})
    entry.fa.set_block_style()
    out = StringIO()
    yaml.dump(entry, out)
    lines = [f"{' ' * column}{line}".rstrip() for line in out.getvalue().splitlines()]
    if in_braces and any(line.endswith(":") for line in lines):  # avoid a key and its value on two lines
        return _dumped(key, value, column)
    return lines


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key if isinstance(key, int) else str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    if isinstance(value, str) and not _WORDS.fullmatch(value):
        return DoubleQuotedScalarString(value)  # DVC cannot read an unquoted colon in braces
    return value
