"""Where processes cannot be forked, what they need is sent to new interpreters."""

from __future__ import annotations

import pickle
from types import MappingProxyType

import pytest

import selfimprove.core.forking  # noqa: F401
from selfimprove.methods.reflect_rl.params import ReflectRLParams
from selfimprove.pipeline.params import load_section
from selfimprove.pipeline.profiles import composed
from tests.support.repo_copy import ROOT


@pytest.mark.parametrize("profile", ["default", "arena-textcraft", "arena-encyclopedia", "reflect-rl-alfworld"])
def test_the_environments_of_the_profiles_can_be_sent_to_new_interpreters(profile: str) -> None:
    section = load_section(composed(profile, ROOT / "profiles"), "reflect_rl", ReflectRLParams, "params.yaml")
    env = section.env.make()
    assert pickle.loads(pickle.dumps(env)).reset(0) == env.reset(0)


def test_read_only_mappings_such_as_autoexplore_s_folders_can_be_sent_too() -> None:
    sent = pickle.loads(pickle.dumps(MappingProxyType({"src": ("a.py",)})))
    assert isinstance(sent, MappingProxyType)
    assert sent == {"src": ("a.py",)}
