"""Reads params.yaml with closed schemas and reports each fault in one sentence.

A stage validates the sections it uses; every stage refuses an unknown top-level key.
"""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, Field, ValidationError
from pydantic_core import ErrorDetails

from selfimprove.core.errors import UserError, meant, sentence
from selfimprove.core.params import CHOICE, LARGEST_SEED, Section
from selfimprove.engines.cluster.config import NO_CLUSTER, ClusterParams
from selfimprove.pipeline.kernels import Kernels

METHODS = ("rise", "agent_r", "reflect_rl", "spin")
"""The methods, in the order of tables and messages."""

SECTIONS = ("run", "tracking", "tokenizer", "base", *METHODS)
"""Top-level keys of params.yaml, in the pipeline's order."""

PARAMS_FILE = Path("params.yaml")

OUTPUTS = ("data", "models", "results", ".scratch")
"""Folders to which the stages write."""

CLOSE, MOST_TRIED = 0.5, 5
"""How similar a known key must be to an unknown one to be suggested, and how many are tried in its place."""

UNKNOWN = ": unknown key"
"""Part of the sentence about a key that no schema has."""
RENAME = "remove it or fix its name."
"""The remedy for an unknown key if no known one is close."""

SHOWN = 60
"""Maximum number of characters of a value that a message repeats."""


class RunParams(Section):
    """Settings of every stage. Results depend on ``seed``, ``threads`` and ``kernels`` only."""

    seed: int = Field(ge=0, le=LARGEST_SEED)
    threads: int = Field(
        default=2,
        ge=1,
        le=1024,
        description="number of CPU threads; other numbers change the low-order bits of results",
    )
    kernels: Kernels = Field(
        default="native",
        description="CPU kernels; native: the fastest for this processor; portable: bit-identical on every x86-64 "
        "processor with AVX2, but slower",
    )
    max_blocked: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description="a stage fails if a larger share of its episodes fails permanently because of an engine or "
        "environment",
    )

    cluster: ClusterParams = Field(default=NO_CLUSTER, description="where engine replicas run")

    @property
    def identity(self) -> tuple[int, int, str]:
        """The values that results depend on."""
        return self.seed, self.threads, self.kernels


S = TypeVar("S", bound=Section)


def load_section(values: dict[str, Any], name: str, schema: type[S], where: str) -> S:
    """Validate one section.

    Raises:
        UserError: names the first invalid key and, if it is unknown, the closest known one (``section_faults`` reports
            all of them).
    """
    try:
        _check_sections(values, name, where)
        return schema.model_validate(values[name])
    except ValidationError as error:
        raise UserError(f"{where}: {_explain(error, name, values[name], schema)[0]}") from None


def section_faults(values: dict[str, Any], name: str, schema: type[Section], where: str) -> list[str]:
    """One sentence per invalid key of a section; empty if the section is valid."""
    try:
        _check_sections(values, name, where)
        schema.model_validate(values[name])
    except UserError as error:
        return [str(error)]
    except ValidationError as error:
        return [f"{where}: {fault}" for fault in _explain(error, name, values[name], schema)]
    return []


NO_INPUTS = ("cache", "blacklist", "api_key_file")
"""Keys that name a file which is no input: stages add to it while they run, or it holds an API key."""


def named_paths(value: Any, *, every: bool = False) -> set[Path]:
    """Inputs that a part of the params names: every string in it that is an existing path, except under ``NO_INPUTS``.

    Folders that contain outputs are omitted. ``every``: include the files under ``NO_INPUTS``.
    """
    if isinstance(value, str):
        try:
            return {Path(value)} if value and Path(value).exists() and not _holds_outputs(Path(value)) else set()
        except (OSError, ValueError):  # the name is too long or contains a null character
            return set()
    if isinstance(value, BaseModel):
        value = {name: getattr(value, name) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        value = [one for key, one in value.items() if every or key not in NO_INPUTS or not isinstance(one, str)]
    elif not isinstance(value, Sequence):
        return set()
    return {path for inner in value for path in named_paths(inner, every=every)}


def _holds_outputs(path: Path) -> bool:
    """Whether a path is this folder, a parent of it, or an output folder, all of which change with every run.

    Such a string is not meant as an input but happens to be a path, such as the stop text ``.``.
    """
    place, here = path.resolve(), Path.cwd()
    return place in (here, *here.parents) or place in [here / name for name in OUTPUTS]


def _check_sections(values: dict[str, Any], name: str, where: str) -> None:
    unknown = [key for key in values if key not in SECTIONS]
    if unknown:
        raise UserError(f"{where}: unknown section {unknown[0]!r}; {meant(unknown[0], SECTIONS, RENAME)}")
    if name not in values:
        raise UserError(f"{where}: section {name!r} is missing; `make use PROFILE=default` restores it.")
    for path in sorted(named_paths(values[name], every=True)):
        if not path.is_file() and not path.is_dir():
            raise UserError(f"{where}: {name}: {path} is a pipe or a device; set a regular file.")


def _explain(error: ValidationError, section: str, value: Any, schema: type[Section]) -> list[str]:
    """One sentence per fault, unknown keys first: a mistyped key also makes the correct one missing."""
    faults = sorted(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
    return list(dict.fromkeys(_sentence(fault, section, value, schema) for fault in faults))


def _sentence(fault: ErrorDetails, section: str, value: Any, schema: type[Section]) -> str:
    place = _keys(fault["loc"], value)
    path = ".".join([section, *place])
    kind = fault["type"]
    if kind == "extra_forbidden":
        close = get_close_matches(place[-1], sorted(_known_keys()), n=MOST_TRIED, cutoff=CLOSE)
        taken = next((key for key in close if _takes(schema, value, place, key)), None)
        return f"{path}{UNKNOWN}; {f'did you mean {taken!r}?' if taken else RENAME}"
    if kind == "missing":
        return f"{path}: missing; add it."
    if kind == "union_tag_invalid" and (key := str(fault["ctx"]["discriminator"]).strip("'")).isidentifier():
        return f"{path}.{key}: {fault['ctx']['tag']!r} is unknown; choose one of {fault['ctx']['expected_tags']}."
    if kind in ("model_type", "dict_type"):
        return f"{path}: must be a section with keys, got {short(fault['input'])}; see docs/params.md."
    message = fault["msg"].removeprefix("Value error, ").rstrip(".")
    remedy = "" if ";" in message else "; fix it"  # most of our own validators include a remedy
    shown = "" if kind in ("value_error", "union_tag_not_found") else f", got {short(fault['input'])}"
    return sentence(f"{path}: {message[0].lower()}{message[1:]}{shown}{remedy}")


def short(value: Any) -> str:
    """The value for a message."""
    text = repr(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"


def _keys(loc: tuple[int | str, ...], value: Any) -> list[str]:
    """The keys as in the file: pydantic's location without the tags of unions (engine, data, environment)."""
    keys, node = [], value
    for part in loc:
        tags = (node.get("engine"), node.get("data")) if isinstance(node, dict) else ()
        if str(part).startswith(CHOICE) or (isinstance(node, dict) and part not in node and part in tags):
            continue
        keys.append(str(part))
        if isinstance(node, dict):
            node = node.get(part)
        elif isinstance(node, list) and isinstance(part, int) and part < len(node):
            node = node[part]
    return keys


def _takes(schema: type[Section], value: Any, place: list[str], key: str) -> bool:
    """Whether the section knows ``key`` in place of the unknown key at ``place``, whose other faults do not count."""
    renamed = deepcopy(value)
    node = renamed
    for part in place[:-1]:
        entries = node if isinstance(node, dict) else dict(enumerate(node))
        node = next(inner for name, inner in entries.items() if str(name) == part)
    node[key] = node.pop(place[-1])
    try:
        schema.model_validate(renamed)
    except ValidationError as error:
        unknown = [_keys(one["loc"], renamed) for one in error.errors() if one["type"] == "extra_forbidden"]
        return [*place[:-1], key] not in unknown
    return True


def _known_keys() -> set[str]:
    known: set[str] = set()
    waiting = list(Section.__subclasses__())
    while waiting:
        schema = waiting.pop()
        known.update(schema.model_fields)
        waiting.extend(schema.__subclasses__())
    return known
