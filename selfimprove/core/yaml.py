"""Reads YAML files. Separate from ``params``, whose schemas backend environments import without ruamel.yaml."""

import re
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import count
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from selfimprove.core.errors import UserError

DEEPEST = 100
"""Limit of the nesting of lists and mappings."""
MOST_BRACKETS = 1000
"""Limit for a text that libyaml gets, which crashes at a nesting of many thousands."""
MOST_VALUES = 1_000_000
"""Limit of the number of values in a file whose aliases are replaced by what they stand for."""
MOST_BITS = 10_000
"""Limit of an integer: Python refuses to write one of more than 4,300 digits, such as a long 0x…, into a message."""
_CONFLICT = re.compile(rb"^<{7} ", re.MULTILINE)
"""What git writes into a file that it cannot merge."""
_INDENTS = re.compile(rb"^[ \-?:]*", re.MULTILINE)
"""Beginnings of lines: block mappings and lists need a character there for every two levels."""


def read_yaml(path: Path) -> dict[str, Any]:
    """The file's mapping as plain objects (YAML 1.2, as in DVC).

    Raises:
        UserError: the file is missing, not YAML, or not a mapping, or git could not merge it.
    """
    if path.is_dir():
        raise UserError(f"{path} is a folder, but must be a file; name a file, or move the folder away.")
    if not path.is_file():
        raise UserError(
            f"{path} does not exist; run this in the repository's root, or restore it with `git restore {path}`."
        )
    try:
        text = path.read_bytes()
        refuse_conflict(path, text)
        text.decode("utf-8")  # DVC reads nothing else
        value = _copied(_parsed(text), count(1), 0)
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else "?"
        raise UserError(f"{path}, line {line}: not YAML ({error.problem}); correct the line.") from None
    except (YAMLError, ValueError, LookupError, TypeError) as error:
        # Not UTF-8; thousands of digits; a tag's wrong value; a list as a key.
        said = " ".join(str(error).split()).replace(' in "<byte string>",', " at")
        raise UserError(f"{path}: not YAML ({said}); fix the file.") from None
    except RecursionError:
        raise UserError(
            f"{path}: lists or mappings are nested too deep, or an alias contains itself; fix the file."
        ) from None
    if not isinstance(value, dict):
        raise UserError(f"{path}: a mapping was expected; write lines such as `key: value`.")
    return value


def refuse_conflict(path: Path, text: bytes) -> None:
    """Raises: UserError: git could not merge the file with this text; which side to take is for the user to say."""
    if _CONFLICT.search(text):
        raise UserError(
            f"{path} has git's conflict markers; take one side whole, with `git checkout --ours {path}` or `git "
            f"checkout --theirs {path}`, then run it again."
        )


def _copied(value: Any, counter: Iterator[int], depth: int) -> Any:
    """A copy in which no two places share an object: a change of one must not act on the other.

    Raises:
        RecursionError: the value is nested too deep, or contains itself.
        ValueError: nested aliases multiply to too many values, or an integer is too large.
    """
    if depth > DEEPEST:
        raise RecursionError
    if next(counter) > MOST_VALUES:
        raise ValueError(f"its aliases stand for more than {MOST_VALUES:,} values")
    scalars = value if isinstance(value, dict) else [value]
    if any(isinstance(one, int) and one.bit_length() > MOST_BITS for one in scalars):
        raise ValueError("a number has thousands of digits")
    if isinstance(value, dict):
        return {key: _copied(inner, counter, depth + 1) for key, inner in value.items()}
    if isinstance(value, list):
        return [_copied(inner, counter, depth + 1) for inner in value]
    return value


@lru_cache(maxsize=4)
def _parsed(text: bytes) -> Any:
    """Cached, because a stage reads params.yaml several times.

    libyaml, which DVC uses too, parses params.yaml in a quarter of the time, but a deep nesting crashes it. Such texts
    are left to ruamel.yaml's own parser, and so are faulty ones, for its messages.
    """
    if text.count(b"[") + text.count(b"{") + 2 * max(map(len, _INDENTS.findall(text)), default=0) < MOST_BRACKETS:
        with suppress(YAMLError, ValueError, LookupError):
            return YAML(typ="safe").load(text)
    return YAML(typ="safe", pure=True).load(text)
