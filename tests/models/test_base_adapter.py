"""A base model that is an adapter is merged into its base, or refused in one sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from selfimprove.core.errors import UserError
from selfimprove.models.base import BaseParams
from selfimprove.models.base_adapter import named_base, with_full_weights
from tests.pipeline.workbench import Workbench
from tests.support.sentences import refused_with
from tests.support.tiny import make_tiny_model, weights

COMMIT = "1" * 40


def make_adapter(base: Path, folder: Path) -> Path:
    """An adapter as peft saves it outside this project: its config names the base by an absolute path."""
    import peft
    import torch
    from transformers import AutoModelForCausalLM

    settings = peft.LoraConfig(task_type="CAUSAL_LM", r=2, lora_alpha=16, target_modules=["q_proj", "v_proj"])
    model = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(base), settings)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.1, generator=torch.Generator().manual_seed(len(name)))
    model.save_pretrained(folder)  # type: ignore[arg-type]
    return folder


def change(adapter: Path, **values: Any) -> None:
    file = adapter / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("base") / "model", hidden=32)


@pytest.fixture(scope="module")
def trained(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_adapter(base, tmp_path_factory.mktemp("trained") / "adapter")


@pytest.fixture
def adapter(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "adapter"))


def merged(adapter: Path, out: Path, adapter_of: str | None = None) -> Path:
    return with_full_weights(adapter, BaseParams(model=str(adapter), adapter_of=adapter_of), out)


def test_an_adapter_is_merged_into_the_base_that_it_names(base: Path, adapter: Path, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    full = merged(adapter, tmp_path / "full")
    start, after, lora = weights(base), weights(full), load_file(adapter / "adapter_model.safetensors")
    name = "model.layers.0.self_attn.q_proj"
    a, b = (lora[f"base_model.model.{name}.lora_{side}.weight"] for side in "AB")
    assert torch.allclose(after[f"{name}.weight"], start[f"{name}.weight"] + 16 / 2 * b @ a, atol=1e-6)
    changed = {key for key in start if not torch.equal(start[key], after[key])}
    assert changed == {key for key in start if "q_proj" in key or "v_proj" in key}
    assert (full / "tokenizer.json").read_bytes() == (base / "tokenizer.json").read_bytes()
    assert not (full / "adapter_config.json").exists()


def test_the_folder_that_an_adapter_names_as_its_base_is_an_input(base: Path, adapter: Path) -> None:
    assert named_base(str(adapter)) == str(base)
    assert [named_base(str(base)), named_base("models/nowhere"), named_base(None)] == [None] * 3
    (adapter / "adapter_base.json").write_text("{}")  # a row's adapter, whose base is checked when it is merged
    assert named_base(str(adapter)) is None
    (adapter / "adapter_base.json").unlink()
    for name in ("owner/name", "", 7, None):
        change(adapter, base_model_name_or_path=name)
        assert named_base(str(adapter)) is None
    (adapter / "adapter_config.json").write_text("[")
    assert named_base(str(adapter)) is None


def test_adapter_of_names_the_base_if_the_config_does_not(base: Path, adapter: Path, tmp_path: Path) -> None:
    change(adapter, base_model_name_or_path=None)
    with pytest.raises(UserError, match=r"does not name the base model of the adapter; set adapter_of"):
        merged(adapter, tmp_path / "full")
    assert weights(merged(adapter, tmp_path / "full", str(base)))


def test_a_base_on_the_hub_must_be_pinned_to_a_commit(adapter: Path, tmp_path: Path) -> None:
    change(adapter, base_model_name_or_path="owner/name", revision=None)
    with pytest.raises(UserError, match=r"adapter of 'owner/name', which is not a folder .* adapter_of .* name@commit"):
        merged(adapter, tmp_path / "full")
    with pytest.raises(UserError, match=r"adapter of 'other/name', which is not a folder"):
        merged(adapter, tmp_path / "full", "other/name")
    change(adapter, base_model_name_or_path="/home/somebody/llama", revision=COMMIT)
    with pytest.raises(UserError, match=r"'/home/somebody/llama' could not be downloaded"):
        merged(adapter, tmp_path / "full")


def test_a_folder_that_cannot_be_merged_is_refused_with_the_reason(base: Path, adapter: Path, tmp_path: Path) -> None:
    out = tmp_path / "full"
    with refused_with(r"contains no adapter \(no adapter_config.json\); remove adapter_of"):
        merged(base, out, str(base))
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copyfile(adapter / "adapter_model.safetensors", alone / "adapter_model.safetensors")
    with refused_with(r"adapter_model.safetensors without adapter_config.json"):
        merged(alone, out)
    with refused_with(r"is an adapter of .*, which is itself an adapter"):
        merged(adapter, out, str(adapter))
    change(adapter, revision=7)
    with refused_with(r"adapter_config.json: the revision 7 is not text; set adapter_of"):
        merged(adapter, out)
    merged(adapter, out, str(base))  # its base is named here
    change(adapter, revision=None, target_modules=["q_proj"])
    with refused_with(r"does not fit .*4 tensors that the model does not, such as .*v_proj"):
        merged(adapter, out)
    change(adapter, target_modules=["q_proj", "k_proj", "v_proj"])
    with refused_with(r"does not fit .*lacks 4 tensors, such as .*k_proj"):
        merged(adapter, out)
    change(adapter, peft_type="PREFIX_TUNING")
    with refused_with(r"an adapter of type 'PREFIX_TUNING', but only LoRA"):
        merged(adapter, out)
    shutil.copyfile(base / "model.safetensors", adapter / "model.safetensors")
    with refused_with(r"contains both a model \(model.safetensors\) and an adapter"):
        merged(adapter, out)
    (adapter / "model.safetensors").unlink()
    (adapter / "adapter_model.safetensors").rename(adapter / "adapter_model.bin")
    with refused_with(r"contains no adapter_model.safetensors; convert"):
        merged(adapter, out)


def test_a_run_can_start_from_an_adapter(bench: Workbench, tmp_path: Path) -> None:
    base = bench.folder / "models" / "rise" / "start"
    adapter = make_adapter(base, tmp_path / "adapter")
    folder = bench.copy(tmp_path / "run", {"base": {"rise": {"model": str(adapter)}}})
    ran = bench.forks.run(folder, "base", "rise")
    assert ran.code == 0, ran.stderr
    files = {file.name for file in (folder / "models" / "rise" / "start").iterdir()}
    assert files == {file.name for file in base.iterdir()}
    assert (folder / "models/rise/start/model.safetensors").read_bytes() != (base / "model.safetensors").read_bytes()
    (adapter / "adapter_config.json").unlink()
    ran = bench.forks.run(folder, "base", "rise")
    assert (ran.code, len(ran.lines)) == (2, 1)
    assert "without adapter_config.json" in ran.stderr
