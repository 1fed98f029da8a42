"""Code that is shipped with a model runs only if a param allows it."""

from __future__ import annotations

import ast
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from selfimprove.core.errors import UserError
from selfimprove.core.records import Example
from selfimprove.models.loading import load_causal_lm
from selfimprove.models.merge import merge_adapter
from selfimprove.training.config import FinetuneParams
from selfimprove.training.launch import finetune

LIBRARY = Path(__file__).parents[2] / "selfimprove"
OWN = """
import os
from transformers import PretrainedConfig
os.mkdir({ran!r})

class OwnConfig(PretrainedConfig):
    model_type = "own"
"""


@pytest.fixture
def model(tiny: Path, tmp_path: Path) -> Path:
    """A model whose folder makes transformers import ``own.py`` for its config."""
    folder = Path(shutil.copytree(tiny, tmp_path / "with-code"))
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.Own"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "own.py").write_text(OWN.format(ran=str(tmp_path / "ran")))
    return folder


def test_engines_trainers_and_merging_refuse_a_model_that_ships_code(
    model: Path, dialogues: Callable[[int], list[Example]], tmp_path: Path
) -> None:
    def train() -> None:
        finetune(model, dialogues(2), tmp_path / "m", FinetuneParams(), scratch=tmp_path / "s", seed=1, threads=1)

    uses = [lambda: load_causal_lm(model), train, lambda: merge_adapter(model, tmp_path / "adapter", "auto")]
    for use in uses:
        with pytest.raises(UserError, match=r"with-code"):
            use()
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation", "experts_implementation"])
@pytest.mark.parametrize("inner", [False, True])
def test_a_config_that_names_a_kernel_of_the_hub_is_refused(tiny: Path, tmp_path: Path, key: str, inner: bool) -> None:
    """transformers would download and run the kernel, also if the caller sets another attention."""
    named, adapter = Path(shutil.copytree(tiny, tmp_path / "named")), tmp_path / "adapter"
    config = json.loads((named / "config.json").read_text())
    kernel = {key: "owner/kernel"}
    (named / "config.json").write_text(json.dumps(config | ({"text_config": kernel} if inner else kernel)))
    adapter.mkdir()
    shutil.copy(named / "config.json", adapter)
    for use in (lambda: load_causal_lm(named), lambda: merge_adapter(tiny, adapter, "auto")):
        with pytest.raises(UserError, match=rf"config.json: {key} is 'owner/kernel', code that would be downloaded"):
            use()


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    """Calls of ``Auto….from_pretrained`` and ``Auto….from_config``."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("from_pretrained", "from_config")
            and isinstance(node.func.value, ast.Name)
            and node.func.value.id.startswith("Auto")
        ):
            yield node


def test_every_load_of_a_model_passes_trust_remote_code_and_no_default_allows_it() -> None:
    told = 0
    for file in LIBRARY.rglob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for call in calls(tree):
            [value] = [word.value for word in call.keywords if word.arg == "trust_remote_code"]
            assert not (isinstance(value, ast.Constant) and value.value), f"{file}:{call.lineno}"
            told += 1
        for node in ast.walk(tree):
            if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "trust_remote_code":
                assert node.value is not None, f"{file}:{node.lineno}"
                assert ast.unparse(node.value) == "False", f"{file}:{node.lineno}"
            if isinstance(node, ast.FunctionDef):
                named = dict(zip([one.arg for one in node.args.kwonlyargs], node.args.kw_defaults, strict=True))
                default = named.get("trust_remote_code")
                assert default is None or ast.unparse(default) == "False", f"{file}:{node.lineno}"
    assert told >= 5
