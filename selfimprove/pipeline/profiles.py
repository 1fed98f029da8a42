"""``make use PROFILE=name``: params.yaml becomes the default profile with one overlay from ``profiles/`` laid over it.

Mappings merge key by key, everything else is replaced, and a null removes an entry of the default. Comments stay.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from copy import deepcopy
from difflib import get_close_matches
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from selfimprove.errors import UserError
from selfimprove.pipeline.publish import write_text

FOLDER = Path("profiles")
DEFAULT = "default"


def compose(name: str, folder: Path = FOLDER) -> str:
    """The text of params.yaml under a profile.

    Raises:
        UserError: there is no such profile (names the nearest).
    """
    text = _file(DEFAULT, folder).read_text(encoding="utf-8")
    if name == DEFAULT:
        return text
    yaml = YAML()
    yaml.width = 120
    yaml.preserve_quotes = True
    params = yaml.load(text)
    # Plain objects, so that an anchor of the overlay becomes a copy and not an alias: every stage has its own knobs.
    merge(params, YAML(typ="safe", pure=True).load(_file(name, folder)))
    out = StringIO()
    yaml.dump(params, out)
    return "".join(line.rstrip() + "\n" for line in out.getvalue().splitlines())


def composed(name: str, folder: Path = FOLDER) -> dict[str, Any]:
    """What ``compose`` writes, as plain objects.

    Raises:
        UserError: there is no such profile (names the nearest).
    """
    reader = YAML(typ="safe", pure=True)
    params: dict[str, Any] = reader.load(_file(DEFAULT, folder))
    if name != DEFAULT:
        merge(params, reader.load(_file(name, folder)))
    return params


def merge(under: Any, over: Mapping[str, Any]) -> None:
    """Lay ``over`` over ``under``, in place."""
    for key, value in over.items():
        if value is None and key in under and isinstance(under[key], Mapping):
            del under[key]
        elif isinstance(value, Mapping) and isinstance(under.get(key), Mapping) and not _replaces(value, under[key]):
            merge(under[key], value)
            if not under[key]:
                _empty(under, key)
        else:
            under[key] = deepcopy(value)


def names(folder: Path = FOLDER) -> list[str]:
    """Profiles that exist."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def _replaces(value: Mapping[str, Any], old: Mapping[str, Any]) -> bool:
    # Two engines of different kinds share no keys worth keeping.
    return "engine" in value and value["engine"] != old.get("engine")


def _empty(under: Any, key: str) -> None:
    # Without the comment after the key, which would be written between it and the braces: no YAML.
    under[key] = {}
    if hasattr(under, "ca"):
        under.ca.items.pop(key, None)


def _file(name: str, folder: Path) -> Path:
    path = folder / f"{name}.yaml"
    if not path.is_file():
        close = get_close_matches(name, names(folder), n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(names(folder))}."
        raise UserError(f"profiles: no profile {name!r}; {hint}")
    return path


def main() -> None:
    """Write params.yaml."""
    try:
        text = compose(sys.argv[1] if len(sys.argv) > 1 else DEFAULT)
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    write_text(Path("params.yaml"), text)
    print(f"params.yaml is now profile {sys.argv[1]}; `git diff params.yaml` shows what changed.")


if __name__ == "__main__":
    main()
