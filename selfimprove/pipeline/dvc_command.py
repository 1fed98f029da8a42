"""DVC's command line with two shortcuts and a repair: ``python -m selfimprove.pipeline.dvc_command repro``.

When a stage has ended, DVC parses all of dvc.lock with a parser that preserves comments, and writes all of it again:
one to three seconds for a hundred stages, during which no other stage can start. Here only the stage's own lines are
replaced, by those that DVC would write. A dvc.lock in another form than DVC's own is left to DVC.

DVC also parses params.yaml up to seven times for each stage. Here a process does so once, until the file changes.

A kill or a full disk can leave a folder of the run cache empty, with which DVC ends in a TypeError at every later run.
Here the stage runs, and fills the folder.
"""

import logging
import re
import sys
from collections.abc import Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from dvc.cli import main
from dvc.dependency import param
from dvc.dvcfile import Lockfile
from dvc.stage.cache import StageCache, _get_stage_hash
from dvc.stage.serialize import to_lockfile
from dvc.utils.serialize import dumps_yaml

from selfimprove.core.publish import write_text

HEADER = "schema: '2.0'\nstages:\n"
"""Beginning of a dvc.lock as DVC writes it, if it records stages only."""
STAGE = re.compile(r"^(?=  [^ \n])", re.MULTILINE)
"""Place of the line with a stage's name."""
OWN_FORM = re.compile(r"  .*:\n( {3}.*\n|\n)*")
"""A stage's name on a line of its own, and indented lines."""

ANCHOR = "&id"
"""Beginning of an anchor, which marks a value that occurs twice. Its number must be unique in the whole file."""

logger = logging.getLogger("dvc.dvcfile")
dump_all = Lockfile.dump_stages
read_anew = param.read_param_file
load_entry = StageCache._load


def with_stages(text: str, stages: Mapping[str, Any]) -> str | None:
    """The text of a dvc.lock in which ``stages`` (name -> recorded data) replace those of the same name, or follow.

    Returns None if the text is not in DVC's own form.
    """
    if not text.startswith(HEADER) or not text.endswith("\n"):
        return None
    _, *blocks = STAGE.split(text[len(HEADER) :])
    found = {block.partition("\n")[0]: block for block in blocks}
    if HEADER + "".join(found.values()) != text or not all(OWN_FORM.fullmatch(block) for block in blocks):
        return None
    for name, data in stages.items():
        block = dumps_yaml({"stages": {name: data}}).removeprefix("stages:\n")
        found[block.partition("\n")[0]] = block
    joined = HEADER + "".join(found.values())
    return None if ANCHOR in joined else joined


def dump_stages(self: Lockfile, stages: Sequence[Any], **kwargs: Any) -> None:
    """As DVC's method of this name."""
    path = Path(self.path)
    old = path.read_text(encoding="utf-8") if path.exists() else HEADER
    new = with_stages(old, {name: data for stage in stages for name, data in to_lockfile(stage, **kwargs).items()})
    if new is None:
        dump_all(self, stages, **kwargs)
    elif new != old:
        logger.info("Updating lock file '%s'", self.relpath)
        write_text(path, new)
        self.repo.scm_context.track_file(self.relpath)


def read_param_file(fs: Any, path: str, key_paths: Sequence[str] | None = None, flatten: bool = False) -> Any:
    """As DVC's function of this name."""
    with fs.open(path, "rb") as file:
        values = _parsed(file.read(), fs, path)
    if not flatten or not key_paths or not values.keys() >= set(key_paths):
        return read_anew(fs, path, key_paths, flatten)
    return deepcopy({name: values[name] for name in key_paths})


@cache
def _parsed(_: bytes, fs: Any, path: str) -> dict[str, Any]:
    """The values of a params file by their dotted names: branches as well as leaves."""
    found: dict[str, Any] = {}
    left = [("", read_anew(fs, path))]
    while left:
        prefix, branch = left.pop()
        for key, value in branch.items() if isinstance(branch, dict) else ():
            if isinstance(key, str) and "." not in key:
                found[prefix + key] = value
                left.append((f"{prefix}{key}.", value))
    return found


def load(self: StageCache, stage: Any) -> Any:
    """As DVC's method ``_load``: the stage's entry of the run cache, or None."""
    folder = Path(self._get_cache_dir(_get_stage_hash(stage)))
    empty = folder.is_dir() and not any(folder.iterdir())
    return None if empty else load_entry(self, stage)


def take_shortcuts() -> None:
    """Let DVC, in this process, use the functions above."""
    StageCache._load = load
    Lockfile.dump_stages = dump_stages
    param.read_param_file = read_param_file


if __name__ == "__main__":
    take_shortcuts()
    sys.exit(main(sys.argv[1:]))
