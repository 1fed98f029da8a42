"""A randomly initialised model: the same seed gives the same bytes, and the folder loads like any other."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from selfimprove.core.chat import ChatFormat
from selfimprove.core.errors import UserError
from selfimprove.models.scratch import ScratchArch, build_scratch_model

ARCH = ScratchArch(hidden=16, layers=1, heads=2, intermediate=32, positions=64)


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(tokenizer: Path, tmp_path: Path) -> None:
    parameters = [
        build_scratch_model(ARCH, tokenizer, tmp_path / name, seed) for name, seed in {"a": 1, "b": 1, "c": 2}.items()
    ]
    files = [{file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in "abc"]
    assert files[0] == files[1]
    assert files[0]["model.safetensors"] != files[2]["model.safetensors"]
    assert parameters[0] == 2 * 320 * 16 + 4 * 16 * 16 + 3 * 16 * 32 + 3 * 16


def test_the_folder_loads_in_transformers_with_a_matching_tokenizer(tokenizer: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    build_scratch_model(ARCH, tokenizer, tmp_path / "m", 0)
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "m")
    assert model.config.eos_token_id == ChatFormat.load(tmp_path / "m").end_id
    assert not model.config.tie_word_embeddings
    assert len(AutoTokenizer.from_pretrained(tmp_path / "m")) == model.config.vocab_size


def test_a_folder_that_is_not_empty_and_a_missing_tokenizer_are_refused(tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(UserError, match="not empty"):
        build_scratch_model(ARCH, tokenizer, tmp_path / "full", 0)
    with pytest.raises(UserError, match=r"tokenizer\.json does not exist"):
        build_scratch_model(ARCH, tmp_path / "nowhere", tmp_path / "m", 0)


def test_building_a_model_does_not_import_deepspeed(
    tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", None)  # an import of it would fail
    build_scratch_model(ARCH, tokenizer, tmp_path / "m", 0)
    assert (tmp_path / "m/model.safetensors").is_file()


def test_a_model_larger_than_the_machines_memory_is_refused_before_it_is_built(tokenizer: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a model of [0-9,]+ parameters .* would take [0-9,]+ GiB of memory, but only"):
        build_scratch_model(ScratchArch(hidden=65536, layers=1000, heads=64), tokenizer, tmp_path / "m", seed=1)
