"""A row trained with LoRA stores its adapter; its full weights are merged once, when they are first read."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from selfimprove.apps.pretraining.tied import tie
from selfimprove.core.errors import UserError
from selfimprove.core.records import Example, Message
from selfimprove.core.seeds import SeedKey
from selfimprove.engines.base import Request
from selfimprove.engines.config import TransformersEngineConfig
from selfimprove.engines.factory import make_engine
from selfimprove.models import merging
from selfimprove.models.adapters import content_key, read_base, weights_key
from selfimprove.models.merge import merge_adapter
from selfimprove.models.merging import full_weights
from selfimprove.training.config import FinetuneParams, LoraConfig
from selfimprove.training.launch import finetune
from selfimprove.training.loading import load_model
from tests.support.sentences import refused_with
from tests.support.tiny import make_tiny_model

ROOT = Path(__file__).resolve().parents[2]
OF_AN_ADAPTER = {"adapter_model.safetensors", "adapter_config.json", "adapter_base.json"}
SETTINGS: dict[str, Any] = {"epochs": 2, "batch_size": 4, "row_tokens": 200, "max_length": 300, "lr": 1e-2}
CHAIN: dict[str, Any] = {
    "iter1": {"lora": {"rank": 4, "alpha": 8}},
    "iter2": {"lora": {"rank": 2, "targets": ["q_proj"]}, "dtype": "bfloat16", "max_length": 1000},
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, dialogues: Callable[..., list[Example]]) -> Path:
    """``models``: base, iter1 (an adapter of base), iter2 (an adapter of iter1, half precision, scaled positions)."""
    folder = tmp_path_factory.mktemp("world")
    start = make_tiny_model(folder / "models" / "base", hidden=32)
    for name, changes in CHAIN.items():
        cfg = FinetuneParams.model_validate({**SETTINGS, **changes})
        scratch = folder / "scratch"
        finetune(start, dialogues(8), folder / "models" / name, cfg, scratch=scratch, seed=3, threads=1)
        start = folder / "models" / name
    return folder


@pytest.fixture
def own(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the models and a store of merged copies for one test."""
    monkeypatch.setattr(merging, "STORE", tmp_path / "merged")
    monkeypatch.setattr(merging, "_HELD", {})
    return Path(shutil.copytree(world / "models", tmp_path / "models"))


def test_a_row_trained_with_lora_stores_its_adapter_and_a_relative_path_to_its_base(world: Path) -> None:
    for name, base in (("iter1", "base"), ("iter2", "iter1")):
        row, start = world / "models" / name, world / "models" / "base"
        plain = {file.name for file in start.iterdir()} - {"model.safetensors"}
        assert {file.name for file in row.iterdir()} == plain | OF_AN_ADAPTER
        assert sum(file.stat().st_size for file in row.glob("*.safetensors")) < 0.2 * _size(start)
        for file in row.glob("*.json"):
            assert str(world) not in file.read_text()
        assert json.loads((row / "adapter_config.json").read_text())["base_model_name_or_path"] == base
        assert json.loads((row / "adapter_base.json").read_text()) == {
            "base": base, "dtype": CHAIN[name].get("dtype", "float32"), "weights": weights_key(world / "models" / base),
        }  # fmt: skip
    targets = json.loads((world / "models/iter1/adapter_config.json").read_text())["target_modules"]
    assert targets == sorted(targets)


@pytest.mark.slow
def test_full_weights_have_the_same_bytes_as_a_merge_by_peft(world: Path, tmp_path: Path) -> None:
    import peft
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    start = world / "models" / "base"
    for name in CHAIN:
        row = world / "models" / name
        dtype = torch.bfloat16 if name == "iter2" else torch.float32
        config = AutoConfig.from_pretrained(start)
        if name == "iter2":
            config.rope_parameters = {**config.rope_parameters, "rope_type": "linear", "factor": 2.0}
        model = AutoModelForCausalLM.from_pretrained(start, config=config, dtype=dtype)
        start = tmp_path / name
        peft.PeftModel.from_pretrained(model, str(row)).merge_and_unload().save_pretrained(start)
        full = full_weights(row)
        assert {file.name for file in full.iterdir()} == {file.name for file in (world / "models" / "base").iterdir()}
        for file in start.iterdir():
            assert (full / file.name).read_bytes() == file.read_bytes(), file.name
    assert full_weights(world / "models" / "base") == world / "models" / "base"


@pytest.mark.filterwarnings("ignore::UserWarning")  # peft's, about tied layers
@pytest.mark.parametrize("target", ["lm_head", "embed_tokens"])
def test_an_adapter_of_one_of_two_tied_layers_does_not_change_the_other_when_it_is_merged(
    tmp_path: Path, target: str
) -> None:
    import peft
    import torch
    from transformers import AutoModelForCausalLM

    base = make_tiny_model(tmp_path / "base", hidden=32)
    tie(base)
    lora = peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=[target, "q_proj"], init_lora_weights=False)
    adapted = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(base), lora).eval()
    adapted.save_pretrained(str(tmp_path / "adapter"))
    merge_adapter(base, tmp_path / "adapter", "float32").save_pretrained(tmp_path / "merged")
    ids = torch.arange(20)[None]
    with torch.no_grad():
        untrained, merged = (AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("base", "merged"))
        assert float((adapted(ids).logits - untrained(ids).logits).abs().max()) > 1
        torch.testing.assert_close(merged(ids).logits, adapted(ids).logits, atol=1e-4, rtol=1e-4)


def test_an_engine_gives_the_same_answers_from_an_adapter_and_its_full_weights(world: Path, tmp_path: Path) -> None:
    def answer(folder: Path) -> tuple[str, list[float]]:
        cfg = TransformersEngineConfig(engine="transformers", slots=2, prefill_rows=2, context=128)
        engine = make_engine(cfg, policy_dir=folder, threads=1, expert=None)
        request = Request(
            messages=[Message(role="user", content="Mia has 3 apples.")], seed=SeedKey(1, "a"), max_tokens=9
        )
        (found,) = asyncio.run(engine.generate(request))
        return found.text, list(found.logprobs or [])

    row = world / "models" / "iter1"
    plain = shutil.copytree(full_weights(row), tmp_path / "plain")
    assert answer(row) == answer(plain)
    assert answer(row)[1] != answer(world / "models" / "base")[1]


@pytest.mark.slow
def test_two_processes_that_need_the_same_weights_share_one_merged_copy(own: Path) -> None:
    (own.parent / ".scratch").mkdir()
    command = [sys.executable, "-m", "selfimprove.models.merge", "models/iter1"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    started = [
        subprocess.Popen(command, cwd=own.parent, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    told = [process.communicate()[0].strip() for process in started]
    assert [process.returncode for process in started] == [0, 0]
    assert told[0] == told[1]
    assert (Path(told[0]) / "model.safetensors").is_file()
    store = own.parent / ".scratch" / "merged"
    assert [one for one in store.iterdir() if one.is_dir()] == [Path(told[0])]


@pytest.mark.slow
def test_leftovers_of_a_killed_merge_are_not_used_and_are_removed(own: Path) -> None:
    part = (merging.STORE / content_key(own / "iter1")).with_suffix(".part")
    part.mkdir(parents=True)
    (part / "model.safetensors").write_bytes(b"torn")
    full = full_weights(own / "iter1")
    assert (full / "model.safetensors").stat().st_size == (own / "base" / "model.safetensors").stat().st_size
    assert not list(merging.STORE.glob("*.part"))


def test_the_newest_merged_copies_and_those_in_use_are_kept(own: Path) -> None:
    copy = merging.STORE / content_key(own / "iter1")
    for age, name in enumerate([copy.name, "old0", "old1", "old2", "old3", "old4"]):
        (merging.STORE / name).mkdir(parents=True)
        os.utime(merging.STORE / name, (1000 - age, 1000 - age))
    with (merging.STORE / "old4.lock").open("w") as used:
        fcntl.flock(used, fcntl.LOCK_SH)
        assert full_weights(own / "iter1") == copy
        assert {one.name for one in merging.STORE.iterdir() if one.is_dir()} == {copy.name, "old0", "old1", "old4"}
    full_weights(own / "iter1")
    assert {one.name for one in merging.STORE.iterdir()} == {copy.name, f"{copy.name}.lock", "old0", "old1"}


def test_a_merged_copy_that_another_process_removes_meanwhile_is_ignored(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "STORE", own / "store")
    for name in "abcde":
        (own / "store" / name).mkdir(parents=True)
    real = Path.is_dir

    def removed_afterwards(path: Path, **options: Any) -> bool:
        found = real(path, **options)
        if path.name == "c":
            path.rmdir()
        return found

    monkeypatch.setattr(Path, "is_dir", removed_afterwards)
    merging._remove_old()
    assert len([one for one in (own / "store").iterdir() if not one.suffix]) == merging.KEPT


def test_merging_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "selfimprove.models.merge", str(tmp_path / "nowhere")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "nowhere contains no model (no config.json); name a folder such as" in done.stderr


def test_a_base_that_is_missing_or_has_changed_is_refused_with_the_remedy(own: Path) -> None:
    os.rename(own / "iter1", own / "elsewhere")
    with refused_with(r"iter2 is an adapter of iter1, which is missing; get it with `make fetch` or `dvc repro`"):
        full_weights(own / "iter2")
    os.rename(own / "elsewhere", own / "iter1")
    base = own / "base" / "model.safetensors"
    content = bytearray(base.read_bytes())
    content[-1] ^= 1
    base.write_bytes(content)
    with refused_with(r"iter1 is an adapter of base, whose weights have changed since; run `dvc"):
        full_weights(own / "iter2")
    (own / "iter2" / "adapter_base.json").write_text('{"base": "/etc", "dtype": "float32", "weights": ""}')
    with refused_with(r"adapter_base.json cannot be used .*relative path"):
        full_weights(own / "iter2")


@pytest.mark.slow
def test_an_adapter_that_does_not_fit_its_base_is_refused_in_one_sentence(own: Path) -> None:
    config = json.loads((own / "iter1" / "adapter_config.json").read_text())
    (own / "iter1" / "adapter_config.json").write_text(json.dumps({**config, "target_modules": ["nothing"]}))
    with pytest.raises(UserError, match=r"iter1 cannot be merged into its base: .* does not fit .*base") as error:
        full_weights(own / "iter1")
    assert "\n" not in str(error.value)


def test_with_zero_epochs_an_adapter_row_is_passed_on_unchanged(own: Path) -> None:
    cfg = FinetuneParams.model_validate({**SETTINGS, "epochs": 0})
    finetune(own / "iter1", [], own / "next", cfg, scratch=own.parent / "scratch", seed=1, threads=1)
    assert read_base(own / "next")[0] == own / "base"
    assert content_key(own / "next") == content_key(own / "iter1")


def test_lora_targets_that_the_model_does_not_have_are_refused(world: Path) -> None:
    params = FinetuneParams(lora=LoraConfig(targets=["q_prox"]))
    with refused_with(r"train.lora.targets: \['q_prox'\] do not fit .*; name linear layers"):
        load_model(world / "models/base", params, seed=1)


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))
