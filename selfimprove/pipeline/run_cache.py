"""DVC's run cache in a cache or remote: which stage produced which outputs from which inputs, an entry for each run."""

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from selfimprove.pipeline.verify import FOLDER

HASH = re.compile(r"[0-9a-f]{32}")
"""The hash of a file, from which DVC makes the path of its object."""

_ENTRY = re.compile(r"runs/([0-9a-f]{2})/\1[0-9a-f]{62}/[0-9a-f]{64}")
"""Path of an entry: two hashes, of the stage's inputs and of the whole entry."""


def entries(place: Any) -> dict[str, str]:
    """The run cache of a cache or remote: path below its root -> full path."""
    root = place.fs.join(place.path, "runs")
    found = place.fs.find(root) if place.fs.exists(root) else []
    named = {place.fs.relpath(path, place.path): path for path in found}
    return {name: path for name, path in named.items() if _ENTRY.fullmatch(name)}


def copy(source: Any, target: Any) -> int:
    """Copy the run-cache entries that the target lacks and return their number."""
    from dvc_objects.fs import generic

    held = entries(target)
    new = [(path, target.fs.join(target.path, name)) for name, path in entries(source).items() if name not in held]
    if new:
        for folder in {target.fs.parent(path) for _, path in new}:
            target.fs.makedirs(folder, exist_ok=True)
        generic.copy(source.fs, [path for path, _ in new], target.fs, [path for _, path in new])
    return len(new)


def drop_forged(place: Any) -> list[str]:
    """Delete the entries of the local run cache that do not have the hashes in their names; returns those names.

    DVC would check out whatever paths such an entry names. The first hash covers the paths of the outputs, but not the
    files that an output may list (``files``), which no stage here has.
    """
    from dvc.stage.cache import _get_cache_hash

    reader, forged = YAML(typ="safe"), []
    for name, path in sorted(entries(place).items()):
        try:
            entry = reader.load(Path(path))
            lists = any("files" in out for out in entry["outs"])
            hashes = _get_cache_hash(entry), _get_cache_hash(entry, key=True)
        except (YAMLError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            lists, hashes = True, ("", "")
        if lists or hashes != (Path(path).name, Path(path).parent.name):
            Path(path).unlink()
            with suppress(OSError):  # DVC fails if the folder of a stage is empty
                Path(path).parent.rmdir()
            forged.append(name)
    return forged


def outputs(runs: dict[str, str]) -> set[str]:
    """The hashes of the outputs that entries of the local run cache name."""
    reader = YAML(typ="safe")
    found: set[str] = set()
    for path in runs.values():
        try:
            named = [out["md5"] for out in reader.load(Path(path))["outs"]]
            found |= {oid for oid in named if HASH.fullmatch(oid.removesuffix(FOLDER))}
        except (YAMLError, ValueError, TypeError, KeyError, AttributeError):
            continue  # DVC removes a damaged entry when it encounters it
    return found
