"""Every function in docs/reference.md exists in the stated module, with the stated parameters and defaults."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

REFERENCE = Path(__file__).resolve().parents[1] / "docs" / "reference.md"
HEADING = re.compile(r"^(#+) (.*)$")
TOLD = re.compile(r"`((?:\w+)?(?:\.\w+)+|\w+)(?:\((.*?)\)(?:\.\w+\(.*?\))?)?(?: -> [^`]*)?`")
METHODS = {"RISE": "rise", "Agent-R": "agent_r", "Reflect-RL": "reflect_rl", "SPIN": "spin"}
PLACES = [f"selfimprove{name}" for name in (".envs", ".envs.qa", ".envs.autoexplore", "")]


def told() -> Iterator[tuple[str, str | None, list[str]]]:
    """(name, text in its parentheses, modules that may contain it) for every function in the tables."""
    modules: list[str] = []
    method = ""
    for line in REFERENCE.read_text(encoding="utf-8").splitlines():
        if heading := HEADING.match(line):
            if heading[1] == "#":
                method = f"selfimprove.methods.{METHODS[heading[2]]}" if heading[2] in METHODS else ""
            modules = re.findall(r"`([\w.]+)`", heading[2])
            package = modules[0].rpartition(".")[0] if modules else ""
            modules = [package + name if name.startswith(".") else name for name in modules]
        elif line.startswith("| `"):
            last = ""
            for name, arguments in TOLD.findall(line.replace(r"\|", "/").split(" | ")[0]):
                name = f"{last}{name}" if name.startswith(".") else name
                last = name.rpartition(".")[0]
                yield name, arguments, [*modules, *([method] if method else []), *PLACES]


def found(name: str, modules: list[str]) -> Any:
    """The object that a name refers to: an attribute of one of the modules or of their submodules."""
    for base in ("", *modules):
        parts = f"{base}.{name}".strip(".").split(".")
        for cut in range(len(parts) - 1, 0, -1):
            try:
                value: Any = importlib.import_module(".".join(parts[:cut]))
                for part in parts[cut:]:
                    fields = getattr(value, "__dataclass_fields__", {})
                    value = fields[part] if part in fields else getattr(value, part)
            except (ImportError, AttributeError):
                continue
            return value
    return None


@pytest.mark.parametrize(("name", "arguments", "modules"), [pytest.param(*row, id=row[0]) for row in told()])
def test_every_function_in_the_reference_exists_with_its_parameters(
    name: str, arguments: str, modules: list[str]
) -> None:
    value = found(name, modules)
    assert value is not None, f"{name} is in none of {modules}"
    if not arguments:
        return
    text = f"def f({arguments.replace('=…', '=object').replace('…', '__rest=0')}): ..."
    written = ast.parse(text).body[0]
    assert isinstance(written, ast.FunctionDef)
    args, parameters = written.args, inspect.signature(value).parameters
    names = [one.arg for one in (*args.args, *args.kwonlyargs, *([args.vararg] if args.vararg else []))]
    more = "__rest" in names
    wanted = [name for name in names if name != "__rest"]
    assert [name for name in parameters if name in wanted or not more] == wanted
    positional = dict(zip([one.arg for one in args.args][::-1], args.defaults[::-1], strict=False))
    keywords = {one.arg: default for one, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)}
    for key in wanted:
        default, told_default = parameters[key].default, (positional | keywords).get(key)
        if told_default is None:
            assert more or default is inspect.Parameter.empty, f"{key} has the default {default!r}"
        elif not isinstance(told_default, ast.Name):
            assert default == ast.literal_eval(told_default), key
        assert (parameters[key].kind is inspect.Parameter.KEYWORD_ONLY) == (key in keywords), key
