"""The plan's formulas, compared with published numbers, DeepSpeed's and accelerate's estimators, and real modules."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.commands.estimate import estimate_training_usage
from accelerate.utils import calculate_maximum_sizes
from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs
from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

from selfimprove.core.errors import UserError
from selfimprove.core.yaml import read_yaml
from selfimprove.pipeline.plan import formulas as f
from selfimprove.pipeline.plan.shapes import TABLE, read_shape, shape_of

CONFIGS = read_yaml(TABLE)
LLAMA_7B = "meta-llama/Llama-2-7b-chat-hf"
GPT2 = f.Shape(
    layers=1, hidden=64, heads=4, kv_heads=4, head_dim=16, intermediate=256, vocab=100, positions=32, tied=True,
    gated=False, biases="all", learned_positions=True, dropout=True, kept_inner=2,
)  # fmt: skip


@pytest.mark.parametrize("model", CONFIGS)
def test_a_listed_model_has_its_published_number_of_parameters(model: str) -> None:
    assert read_shape(CONFIGS[model], model).parameters == pytest.approx(CONFIGS[model]["parameters"], rel=1e-3)


@pytest.mark.parametrize("model", CONFIGS)
def test_transformers_builds_a_model_with_the_same_number_of_parameters(model: str) -> None:
    sizes = {key: value for key, value in CONFIGS[model].items() if key not in ("parameters", "dtype")}
    with torch.device("meta"):
        made = AutoModelForCausalLM.from_config(AutoConfig.for_model(**sizes))
    shape = read_shape(CONFIGS[model], model)
    assert sum(one.numel() for one in made.parameters()) == shape.parameters
    assert calculate_maximum_sizes(made)[0] == pytest.approx(4 * shape.parameters, rel=1e-3)


@pytest.mark.parametrize("targets", [["q_proj", "v_proj"], "all-linear"])
def test_adapters_have_the_same_number_of_parameters_as_in_peft(targets: list[str] | str) -> None:
    model = "HuggingFaceTB/SmolLM2-135M-Instruct"
    sizes = {key: value for key, value in CONFIGS[model].items() if key not in ("parameters", "dtype")}
    with torch.device("meta"):
        made = get_peft_model(
            AutoModelForCausalLM.from_config(AutoConfig.for_model(**sizes)),
            LoraConfig(task_type="CAUSAL_LM", r=8, target_modules=targets),
        )
    learned = sum(one.numel() for one in made.parameters() if one.requires_grad)
    assert f.adapter_parameters(read_shape(CONFIGS[model], model), 8, targets) == learned


@pytest.mark.parametrize("processes", [1, 4, 8])
def test_zero_memory_equals_deepspeed_s_estimate(processes: int) -> None:
    count, layer = 6_738_415_616, 131_072_000
    _, stage3, _ = estimate_zero3_model_states_mem_needs(count, layer, processes, cpu_offload=False)
    _, stage2 = estimate_zero2_model_states_mem_needs(count, processes, cpu_offload=False)
    assert f.zero_states(count, processes, 3, largest_layer=layer).total == pytest.approx(stage3, abs=1)
    assert f.zero_states(count, processes, 2).total == pytest.approx(stage2, abs=1)


def test_offloaded_zero_memory_equals_deepspeed_s_estimate() -> None:
    count, layer = 6_738_415_616, 131_072_000
    host3, gpu3, _ = estimate_zero3_model_states_mem_needs(count, layer, 4, additional_buffer_factor=1.0)
    host2, gpu2 = estimate_zero2_model_states_mem_needs(count, 4, additional_buffer_factor=1.0)
    three, two = (f.zero_states(count, 4, stage, largest_layer=layer, offload=True) for stage in (3, 2))
    assert (three.host, three.total) == (host3, gpu3)
    assert (two.host, two.total) == (host2, gpu2)


def test_float32_training_memory_equals_accelerate_s_estimate() -> None:
    count = 134_515_008
    theirs = estimate_training_usage(4 * count, "float32")
    ours = f.full_states(count, autocast=False, buckets=False)
    assert (ours.weights, ours.gradients, ours.optimiser) == (theirs["model"], theirs["gradients"], theirs["optimizer"])
    assert ours.total == theirs["step"]


def test_as_in_the_paper_a_layer_keeps_34_bytes_per_token_and_hidden_unit_and_5_per_score() -> None:
    tokens, width = 1000, 500
    assert f.layer_activations(GPT2, tokens) == 34 * tokens * GPT2.hidden
    scores = f.layer_activations(GPT2, tokens, width=width) - f.layer_activations(GPT2, tokens)
    assert scores == 5 * GPT2.heads * width * tokens


SMALL: dict[str, Any] = {
    "llama": {
        "num_hidden_layers": 4, "hidden_size": 256, "num_attention_heads": 8, "num_key_value_heads": 2,
        "intermediate_size": 704, "max_position_embeddings": 256,
    },
    "gpt2": {
        "n_layer": 4, "n_embd": 256, "n_head": 8, "n_positions": 256, "attn_pdrop": 0.0, "resid_pdrop": 0.0,
        "embd_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0,
    },
}  # fmt: skip


def saved_bytes(config: dict, dtype: torch.dtype, *, checkpointing: bool, adapters: LoraConfig | None = None) -> int:
    """Bytes, without weights, that torch keeps for the backward pass of 256 tokens through a model's layers."""
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config)).to(dtype).train()
    if adapters is not None:
        get_peft_model(model, adapters)
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    weights = {tensor.untyped_storage().data_ptr() for tensor in [*model.parameters(), *model.buffers()]}
    saved: dict[int, torch.Tensor] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    autocast = torch.autocast("cpu", torch.bfloat16, enabled=adapters is not None)
    with autocast, torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        hidden = model.base_model(input_ids=torch.zeros(1, 256, dtype=torch.int64), use_cache=False).last_hidden_state
    assert hidden.requires_grad
    return sum(tensor.untyped_storage().nbytes() for tensor in saved.values())


@pytest.mark.parametrize(("dtype", "each"), [(torch.bfloat16, 2), (torch.float32, 4)])
@pytest.mark.parametrize("kind", SMALL)
def test_the_counted_activations_match_what_torch_saves_for_the_backward_pass(
    kind: str, dtype: torch.dtype, each: int
) -> None:
    config = {"model_type": kind, "vocab_size": 320, **SMALL[kind]}
    shape = replace(read_shape(config, kind), dropout=False)
    layers = shape.layers * f.layer_activations(shape, 256, bytes_each=each)
    assert layers == pytest.approx(saved_bytes(config, dtype, checkpointing=False), rel=0.07)
    # With checkpointing, each layer keeps its input. The final norm is not a layer and keeps as much as without.
    norm = 256 * shape.hidden * (4 + each if shape.gated else each)
    inputs = shape.layers * 256 * shape.hidden * each
    assert inputs == pytest.approx(saved_bytes(config, dtype, checkpointing=True) - norm, rel=0.25)


def test_adapters_with_dropout_keep_the_inputs_of_their_matrices_and_a_mask() -> None:
    config = {"model_type": "llama", "vocab_size": 320, **SMALL["llama"]}
    shape = read_shape(config, "llama")
    adapters = LoraConfig(task_type="CAUSAL_LM", r=4, lora_dropout=0.1, target_modules="all-linear")
    kept = saved_bytes(config, torch.bfloat16, checkpointing=False, adapters=adapters)
    # A CPU's mask has two bytes per element, a GPU's one.
    inputs = f.adapter_activations(shape, 256, "all-linear") * 4 / 3
    assert shape.layers * (f.layer_activations(shape, 256) + inputs) == pytest.approx(kept, rel=0.1)


def test_checkpointing_keeps_each_layer_s_input_and_all_activations_of_one_layer() -> None:
    shape = read_shape(CONFIGS[LLAMA_7B], LLAMA_7B)
    kept = f.training_activations(shape, 2048, checkpointing=True, predicted=0)
    assert kept == 2 * 2048 * 4096 * 32 + f.layer_activations(shape, 2048)
    assert f.training_activations(shape, 2048, checkpointing=False, predicted=0) == 32 * f.layer_activations(
        shape, 2048
    )


def test_the_kv_cache_of_llama_2_7b_takes_half_a_mebibyte_per_token() -> None:
    assert f.kv_bytes(read_shape(CONFIGS[LLAMA_7B], LLAMA_7B), "bfloat16") == 2**19
    eighth = read_shape(CONFIGS["meta-llama/Llama-3.1-8B-Instruct"], "")  # 8 key heads instead of 32
    assert f.kv_bytes(eighth, "bfloat16") == 2**17


def test_training_takes_6_operations_per_parameter_and_token_8_with_checkpointing_4_if_frozen() -> None:
    shape = read_shape(CONFIGS[LLAMA_7B], LLAMA_7B)
    plain = f.training_operations(shape, 1.0, 1, checkpointing=False, frozen=False)
    assert plain == pytest.approx(6 * shape.parameters, rel=0.03)
    assert f.training_operations(shape, 1.0, 1, checkpointing=True, frozen=False) == pytest.approx(plain * 8 / 6)
    assert f.training_operations(shape, 1.0, 1, checkpointing=False, frozen=True) == pytest.approx(plain * 4 / 6)


def test_8bit_weights_take_a_byte_4bit_about_half_of_one_and_weights_outside_layers_four() -> None:
    shape = read_shape(CONFIGS[LLAMA_7B], LLAMA_7B)
    outside = 4 * (shape.parameters - 32 * shape.layer_matrices)
    assert f.frozen_bytes(shape, "bfloat16") == 2 * shape.parameters
    assert f.frozen_bytes(shape, "bfloat16", "8bit") == 32 * shape.layer_matrices + outside
    assert f.frozen_bytes(shape, "bfloat16", "4bit") == pytest.approx(
        32 * shape.layer_matrices * 0.516 + outside, rel=1e-3
    )


def test_a_decoding_step_is_memory_bound_with_few_rows_and_compute_bound_with_many() -> None:
    shape = read_shape(CONFIGS[LLAMA_7B], LLAMA_7B)
    limits = {"bandwidth": 2e12, "operations": 4e14, "floor": 0.0}
    weights = 2.0 * shape.parameters
    assert f.decode_seconds(shape, weights, 1, 0, "bfloat16", **limits) == pytest.approx(weights / 2e12)
    many = f.decode_seconds(shape, weights, 4000, 0, "bfloat16", **limits)
    assert many == pytest.approx(4000 * 2 * shape.multiplied / 4e14)
    assert f.decode_seconds(shape, weights, 1, 0, "bfloat16", **{**limits, "floor": 1.0}) == 1.0


def test_the_shape_of_a_model_folder_is_read_from_its_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**CONFIGS[LLAMA_7B], "num_hidden_layers": 2}))
    assert shape_of(str(tmp_path)).layers == 2


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"model_type": "mamba"}, "does not support model_type 'mamba'"),
        ({"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2}, "'num_hidden_layers' is missing"),
        ({**CONFIGS[LLAMA_7B], "num_hidden_layers": "2"}, "config.json: its layers is '2'; restore the file"),
        ({**CONFIGS[LLAMA_7B], "vocab_size": 0}, "config.json: its vocab is 0; restore the file"),
        ({**CONFIGS[LLAMA_7B], "num_attention_heads": 0}, "config.json is damaged; restore the file"),
        ({**CONFIGS[LLAMA_7B], "hidden_size": None}, "config.json is damaged; restore the file"),
        ([], "config.json is damaged; restore the file"),
    ],
)
def test_an_unsupported_incomplete_or_damaged_config_is_refused(config: Any, said: str) -> None:
    with pytest.raises(UserError, match=said):
        read_shape(config, "config.json")


@pytest.mark.parametrize("model", ["someone/unknown", "models/my/own", "my model", "x" * 300])
def test_an_unknown_model_is_refused_with_the_advice_to_add_its_config(model: str) -> None:
    with pytest.raises(UserError, match=rf"{model}.*add its config"):
        shape_of(model, "abc")
