"""Loading a model folder for training: attention, RoPE scaling, quantisation, adapters."""

import importlib.util
import logging
import math
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
from transformers.models.auto.configuration_auto import AutoConfig

from selfimprove.core.errors import UserError, first_line
from selfimprove.models.adapters import take_adapter
from selfimprove.models.loading import UnsupportedAttention, caps_scores, load_whole, longrope_limit, rope_kinds
from selfimprove.training import segments
from selfimprove.training.config import FinetuneParams, LoraConfig
from selfimprove.training.rows import END_TO_END

MASKED_LAYERS = {
    "full_attention", "sliding_attention", "chunked_attention", "window_attention", "indexed_attention", "attention",
    "mlp", "moe", "dense", "sparse",
}  # fmt: skip
"""Values of a config's ``layer_types`` whose layers see only what a mask shows them, or one token."""

RECURRENT_MODELS = {"rwkv", "xlstm"}
"""Model types without ``layer_types`` whose layers read a row from left to right."""


class Place(NamedTuple):
    """Where messages say that a model's settings are: the section, and the key that limits an example's length."""

    section: str = "train"
    length: str = "train.max_length"


TRAIN = Place()


def load_model(
    model_dir: Path, params: FinetuneParams, seed: int, *, dropout: bool = True, place: Place = TRAIN
) -> tuple[Any, float | None]:
    """The model to train, with adapters if configured, and the RoPE scaling factor (None: no scaling needed).

    Without ``dropout``, dropout is also disabled in training, in the model and in the adapters.

    Raises:
        UserError: no such model, not a causal language model, or quantisation without its library.
    """
    model, factor = load_base(model_dir, params, place)
    if not dropout:
        without_dropout(model)
    lora = params.lora
    if lora is None:
        return model, factor
    import peft

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            kept = lora if dropout else lora.model_copy(update={"dropout": 0.0})
            return peft.get_peft_model(model, peft_config(kept)), factor
        except ValueError as error:
            raise UserError(
                f"{place.section}.lora.targets: {lora.targets} do not fit {model_dir} ({first_line(error)}); name "
                "linear layers of the model, or set all-linear."
            ) from None


def peft_config(lora: LoraConfig) -> Any:
    """The adapters' settings in peft's format."""
    import peft

    return peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.rank,
        lora_alpha=lora.alpha,
        lora_dropout=lora.dropout,
        target_modules=lora.targets,
    )


def load_base(model_dir: Path, params: FinetuneParams, place: Place = TRAIN) -> tuple[Any, float | None]:
    """``load_model`` without adapters: the base model, quantised if configured, and the RoPE scaling factor."""
    config, factor = load_config(model_dir, params, place)
    _check_attention(model_dir, config.get_text_config(), params, place)
    lora = params.lora
    extra: dict[str, Any] = {}
    if lora is not None and lora.quantize != "none":
        extra["quantization_config"] = _quantization(lora, params, place)
    # Full training keeps float32 weights and computes in bfloat16; with adapters, the base is in the computing dtype.
    # DeepSpeed also computes in that dtype and creates its own float32 master weights, sharded over the processes. A
    # float32 model would double every process's memory for the same values.
    computed_in = lora is not None or params.launcher.kind == "deepspeed"
    other = "eager" if params.attention == "sdpa" else "sdpa or eager"
    try:
        model = load_whole(
            model_dir,
            trust_remote_code=params.trust_remote_code,
            config=config,
            dtype=getattr(torch, params.dtype) if computed_in else torch.float32,
            attn_implementation=params.attention,
            **placement(params),
            **extra,
        )
        if params.attention == segments.NAME and not model._supports_attention_backend:
            # Some load all the same, and would let each conversation of a row attend to those before it.
            raise UnsupportedAttention(model_dir, segments.NAME)
    except UnsupportedAttention as error:
        raise UserError(f"{place.section}.attention: {error}; set {other}.") from None
    model.config.use_cache = False
    if lora is not None and lora.quantize != "none":
        import peft

        model = peft.prepare_model_for_kbit_training(model, use_gradient_checkpointing=params.gradient_checkpointing)
    return model, factor


def _check_attention(folder: Path, config: Any, params: FinetuneParams, place: Place) -> None:
    """Raises: UserError: examples of one row would influence each other, or attention would differ from the model's."""
    if params.attention == "sdpa" and caps_scores(config):
        raise UserError(
            f"{place.section}.attention: sdpa ignores the soft cap on attention scores of {folder}; set eager."
        )
    window = getattr(config, "sliding_window", None)
    if params.attention in ("sdpa", "eager") and isinstance(window, int) and 0 < window < params.max_length:
        other = ", or set train.attention: flash_attention_2" if place == TRAIN else ""
        raise UserError(
            f"{place.length}: {params.max_length} exceeds the sliding window of {folder} ({window}), which is not "
            f"applied to rows of several conversations with {params.attention}; lower it{other}."
        )
    biased = config.model_type == "bloom" or getattr(config, "alibi", False)
    if biased and (params.attention != "eager" or params.row_tokens > 1):
        raise UserError(
            f"{place.section}.row_tokens: the position biases (ALiBi) of {folder} allow neither several conversations "
            "in a row nor other attention than eager; set row_tokens: 1, which gives each a row of its own, and "
            "attention: eager."
        )
    recurrent = recurrent_layers(config)
    if recurrent and (params.attention in END_TO_END or params.row_tokens > 1):
        raise UserError(
            f"{place.section}.row_tokens: the layers of {folder} ({', '.join(recurrent)}) would carry one "
            "conversation of a row over to the next; set row_tokens: 1, which gives each a row of its own, and "
            "attention: sdpa."
        )


def recurrent_layers(config: Any) -> list[str]:
    """The kinds of a model's layers that read whole rows, whatever a mask says: convolutions, state spaces, …"""
    kinds = set(getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or ())
    return sorted(kinds - MASKED_LAYERS) or [config.model_type] * (config.model_type in RECURRENT_MODELS)


def placement(params: FinetuneParams) -> dict[str, Any]:
    """``from_pretrained``'s option to load each tensor directly onto this process's GPU, if it has one.

    Host memory then holds one tensor at a time rather than a model per process. ZeRO-3 places the shards itself.
    """
    if params.device == "cpu" or is_deepspeed_zero3_enabled():
        return {}
    return {"device_map": {"": torch.cuda.current_device()}}


def without_dropout(model: torch.nn.Module) -> None:
    """Disable dropout in the modules only, so that the config, which is written with the model, is unchanged."""
    for module in model.modules():
        for name in ("p", "dropout", "attention_dropout", "hidden_dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)


def write_adapter(trained: Path, model_dir: Path, params: FinetuneParams, out_dir: Path) -> None:
    """Write a trained adapter, with the config for the merged model.

    Args:
        trained: folder written by peft's ``save_pretrained``.
        model_dir: full weights of the model that the adapter was trained on.
    """
    config, _ = load_config(model_dir, params)
    config.dtype = getattr(torch, params.dtype)
    config.save_pretrained(out_dir)
    take_adapter(trained, out_dir)


def rope_factor(max_length: int, positions: int) -> int | None:
    """Linear RoPE scaling factor for ``max_length``, or None if the model's own positions suffice."""
    return math.ceil(max_length / positions) if max_length > positions else None


def load_config(model_dir: Path, params: FinetuneParams, place: Place = TRAIN) -> tuple[Any, float | None]:
    """The model's config with the RoPE scaling needed for ``params.max_length``, and its factor (None: no scaling).

    Only RoPE without scaling, or with linear scaling, is scaled: other kinds would need other factors.

    Raises:
        UserError: there is no model, its config is unreadable, or it has fewer positions and no RoPE to scale.
    """
    if not (model_dir / "config.json").is_file():
        raise UserError(f"{model_dir} contains no model (config.json is missing); run the stage that creates it.")
    try:
        config = AutoConfig.from_pretrained(
            model_dir, trust_remote_code=params.trust_remote_code, local_files_only=True
        )
    except (OSError, ValueError) as error:
        raise UserError(
            f"{model_dir}/config.json cannot be used ({first_line(error)}); fix the model folder."
        ) from None
    text = config.get_text_config()
    limit = longrope_limit(text)
    if limit is not None and params.max_length > limit:
        raise UserError(
            f"{place.length}: {params.max_length} exceeds longrope's original_max_position_embeddings of {model_dir} "
            f"({limit}), beyond which a long example would change the short ones of its micro-batch; lower it."
        )
    positions = getattr(text, "max_position_embeddings", None)
    factor = rope_factor(params.max_length, positions) if isinstance(positions, int) and positions > 0 else None
    rope, kinds = getattr(text, "rope_parameters", None), rope_kinds(text)
    if factor is None or (rope is None and recurrent_layers(text)):
        return config, None
    if kinds != [rope] or kinds[0].get("rope_type", "default") not in ("default", "linear"):
        raise UserError(
            f"{place.length}: {params.max_length} exceeds the {positions} positions of {model_dir}, which can't be "
            "scaled; lower it."
        )
    scale = float(max(factor, kinds[0].get("factor", 1)))
    text.rope_parameters = {**kinds[0], "rope_type": "linear", "factor": scale}
    return config, scale


def _quantization(lora: LoraConfig, params: FinetuneParams, place: Place) -> Any:
    if importlib.util.find_spec("bitsandbytes") is None:
        raise UserError(
            f"{place.section}.lora.quantize: {lora.quantize} needs the package bitsandbytes; install it, or set 'none'."
        )
    from transformers.utils.quantization_config import BitsAndBytesConfig

    if lora.quantize == "8bit":
        # It warns about float16 inputs in every matrix product, i.e. hundreds of lines per step, with no remedy.
        logging.getLogger("bitsandbytes.autograd._functions").setLevel(logging.ERROR)
        return BitsAndBytesConfig(load_in_8bit=True)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=getattr(torch, params.dtype),
    )
