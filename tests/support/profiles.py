"""The repository's profiles as plain values, read once per session; test_profiles compares them with `make use`."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from selfimprove.core.overlay import merge
from selfimprove.pipeline.profiles import names

PROFILES = Path(__file__).resolve().parents[2] / "profiles"
NAMES = names(PROFILES)


def profile(name: str) -> dict[str, Any]:
    """The params of a profile, as a copy that the caller may change."""
    params = deepcopy(_read("default"))
    if name != "default":
        merge(params, _read(name))
    return params


@cache
def _read(name: str) -> dict[str, Any]:
    values: dict[str, Any] = YAML(typ="safe", pure=True).load(PROFILES / f"{name}.yaml")
    return values
