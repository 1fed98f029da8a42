"""The repository's profiles as plain values, each file read once a session; test_profiles compares with `make use`."""

from __future__ import annotations

from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from selfimprove.pipeline.profiles import merge, names

PROFILES = Path(__file__).resolve().parents[2] / "profiles"
NAMES = names(PROFILES)


def profile(name: str) -> dict[str, Any]:
    """The params of a profile, for the caller to change."""
    params = deepcopy(_read("default"))
    if name != "default":
        merge(params, _read(name))
    return params


@cache
def _read(name: str) -> dict[str, Any]:
    values: dict[str, Any] = YAML(typ="safe", pure=True).load(PROFILES / f"{name}.yaml")
    return values
