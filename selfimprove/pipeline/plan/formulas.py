"""The arithmetic of a plan: bytes, floating-point operations and seconds, as pure functions of plain numbers.

Sources, repeated at each function:

- ZeRO: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models"; and the
  estimators of DeepSpeed (``deepspeed.runtime.zero``), which these functions reproduce (a test compares them).
- Activations: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models".
- Operations: Kaplan et al. 2020, "Scaling Laws for Neural Language Models", appendix on compute: 2 per parameter and
  token in the forward pass, twice that in the backward pass.
- Decoding: Pope et al. 2022, "Efficiently Scaling Transformer Inference": a step reads all weights and the KV cache.
- Quantisation: Dettmers et al. 2022 (LLM.int8()) and 2023 (QLoRA).

Sizes are bytes (1 GB = 10^9 bytes), counts are of tokens, times are seconds.
"""

from dataclasses import dataclass
from typing import Literal

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}

ADAM, RMSPROP = 8, 4
"""Bytes of optimiser state per parameter: two float32 moments, or one."""


@dataclass(frozen=True)
class Shape:
    """The properties of a decoder-only transformer that the formulas use.

    ``gated``: an MLP of three matrices and RMSNorm (Llama), otherwise two and LayerNorm (GPT-2). ``kept_inner``: number
    of tensors of the MLP's inner width needed for its backward pass: 4 if gated (two products of the input, the
    activation and its product), 5 for GPT-2's unfused GELU, 2 for a fused one. ``biases``: none, those of queries, keys
    and values (Qwen2), or all (GPT-2). ``learned_positions``: position embeddings instead of RoPE. ``stored``: bytes
    per parameter in the published checkpoint."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    positions: int
    tied: bool
    gated: bool = True
    biases: Literal["none", "qkv", "all"] = "none"
    learned_positions: bool = False
    dropout: bool = False
    kept_inner: int = 4
    stored: int = 2

    @property
    def layer_matrices(self) -> int:
        """Parameters of a layer's matrices: the four of attention and the MLP's."""
        attention = 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        return attention + (3 if self.gated else 2) * self.hidden * self.intermediate

    @property
    def embedding(self) -> int:
        """Parameters of the token embedding."""
        return self.vocab * self.hidden

    @property
    def parameters(self) -> int:
        """All parameters; a tied output layer counts once."""
        biases = 0
        if self.biases != "none":
            biases += self.head_dim * (self.heads + 2 * self.kv_heads)
        if self.biases == "all":
            biases += self.hidden + self.intermediate + self.hidden
        norm = self.hidden * (2 if self.biases == "all" else 1)  # LayerNorm has a bias, RMSNorm does not
        outside = self.embedding * (1 if self.tied else 2) + norm
        outside += self.positions * self.hidden if self.learned_positions else 0
        return self.layers * (self.layer_matrices + biases + 2 * norm) + outside

    @property
    def multiplied(self) -> int:
        """Parameters that take part in a token's multiplications: the layers' matrices and the output layer."""
        return self.layers * self.layer_matrices + self.embedding


# --- model states ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class States:
    """Bytes of a model in training on one GPU, and in host memory if offloaded."""

    weights: float
    gradients: float
    optimiser: float
    host: float = 0.0

    @property
    def total(self) -> float:
        """All bytes on the GPU."""
        return self.weights + self.gradients + self.optimiser


def zero_states(
    parameters: int, processes: int, stage: int, *, moments: int = ADAM, largest_layer: int = 0, offload: bool = False
) -> States:
    """ZeRO stage 2 or 3 with bfloat16 weights and gradients, and float32 master weights, moments and step gradients.

    The ZeRO paper counts 2 + 2 + 12 bytes per parameter; DeepSpeed's estimators add 4 for the float32 gradients created
    in the step. Stage 2 partitions gradients and optimiser state over the processes. Stage 3 also partitions the
    weights but needs the largest layer unsharded (4 bytes per parameter). With ``offload``, the partitioned states are
    in host memory.

    Source: ``estimate_zero2_model_states_mem_needs``, ``estimate_zero3_model_states_mem_needs``.
    """
    whole = 2 * parameters if stage == 2 else 4 * largest_layer
    held = 0 if stage == 2 else 2 * parameters / processes
    gradients, optimiser = 6 * parameters / processes, (4 + moments) * parameters / processes
    if stage == 3:
        gradients = 4 * parameters / processes
    if offload:
        return States(whole, 0.0, 0.0, host=(16 if stage == 2 else 18) * parameters)
    return States(whole + held, gradients, optimiser)


def full_states(parameters: int, *, moments: int = ADAM, autocast: bool, buckets: bool) -> States:
    """Float32 training on one GPU or with DDP: weights, gradients and moments in float32.

    ``autocast``: compute in bfloat16 with a cast copy of the weights. ``buckets``: add DDP's, of the gradients' size.
    Source: Micikevicius et al. 2018, "Mixed Precision Training"; PyTorch's autocast and DDP.
    """
    weights = (6 if autocast else 4) * parameters
    return States(weights, (8 if buckets else 4) * parameters, moments * parameters)


def adapter_states(base: float, adapters: int, *, moments: int = ADAM) -> States:
    """LoRA: the frozen base, and the adapters' weights, gradients and moments in float32.

    Source: Hu et al. 2021, "LoRA"; peft keeps adapters in float32 over a half-precision base.
    """
    return States(base + 4 * adapters, 4 * adapters, moments * adapters)


def zero3_adapter_states(
    base: float, adapters: int, processes: int, *, largest_layer: float, moments: int = ADAM, offload: bool = False
) -> States:
    """LoRA with ZeRO stage 3, which partitions frozen weights too: each process holds its share of the ``base`` and
    gathers its largest layer. With ``offload``, the shares and the optimiser state are in host memory. ``base`` and
    ``largest_layer`` are bytes; the adapters are counted whole, since DeepSpeed does not partition small tensors.
    """
    whole = adapter_states(largest_layer, adapters, moments=moments)
    if offload:
        return States(whole.weights, whole.gradients, 0.0, host=base + whole.optimiser)
    return States(whole.weights + base / processes, whole.gradients, whole.optimiser)


def frozen_bytes(shape: Shape, dtype: str, quantize: str = "none") -> float:
    """Bytes of a frozen model's weights. If quantised, the layers' matrices take 1 (8bit) or 0.516 bytes (4bit) per
    parameter, and the rest is float32 (``peft.prepare_model_for_kbit_training``).

    4bit: 4 bits and, double-quantised, 0.127 bits of constants (QLoRA, section 3).
    """
    if quantize == "none":
        return shape.parameters * BYTES[dtype]
    matrices = shape.layers * shape.layer_matrices
    return matrices * (1 if quantize == "8bit" else (4 + 0.127) / 8) + 4 * (shape.parameters - matrices)


def adapter_parameters(shape: Shape, rank: int, targets: list[str] | str) -> int:
    """Parameters of the two LoRA factors of each target matrix: rank * (rows + columns)."""
    return shape.layers * rank * sum(read + made for read, made in _adapted(shape, targets))


def adapter_activations(shape: Shape, tokens: int, targets: list[str] | str, *, bytes_each: int = 2) -> float:
    """Bytes that the adapters of one layer keep for their backward pass: for each target matrix, its input after
    dropout and the mask of one byte per element."""
    return tokens * (bytes_each + 1) * sum(read for read, _ in _adapted(shape, targets))


def _adapted(shape: Shape, targets: list[str] | str) -> list[tuple[int, int]]:
    """Inputs and outputs of a layer's matrices that have adapters; GPT-2 calls two of its matrices c_proj."""
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    hidden, inner = shape.hidden, shape.intermediate
    if shape.learned_positions:
        sides = {
            "c_attn": [(hidden, query + 2 * key)], "c_proj": [(query, hidden), (inner, hidden)],
            "c_fc": [(hidden, inner)],
        }  # fmt: skip
    else:
        sides = {
            "q_proj": [(hidden, query)], "k_proj": [(hidden, key)], "v_proj": [(hidden, key)],
            "o_proj": [(query, hidden)], "up_proj": [(hidden, inner)], "down_proj": [(inner, hidden)],
            "gate_proj": [(hidden, inner)],
        }  # fmt: skip
    names = sides if isinstance(targets, str) else targets
    return [side for name in names for side in sides.get(name, [])]


# --- activations and KV cache ----------------------------------------------------------------------------------------


def layer_activations(shape: Shape, tokens: int, *, width: int = 0, bytes_each: int = 2) -> float:
    """Bytes that one layer keeps for its backward pass: 34 * tokens * hidden for the paper's layer (Korthikanti et al.,
    equation 2: an MLP of 4 * hidden, as many key as query heads, dropout, 2 bytes), plus 5 * heads * width per token if
    attention scores are materialised (``width`` not 0).

    By part: attention keeps its input, queries, keys, values and the input of its output matrix. The MLP keeps its
    input and ``kept_inner`` tensors of its inner width. A LayerNorm keeps its input; an RMSNorm, which computes in
    float32, a float32 copy of it and the normalised values. Dropout keeps a mask of one byte per element. A test
    compares this with the tensors that torch saves for transformers' models.
    """
    query, key = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    elements = shape.hidden + query + 2 * key + query  # attention
    elements += shape.hidden + shape.kept_inner * shape.intermediate
    elements += 2 * shape.hidden  # the norms
    copies = 2 * 4 * shape.hidden if shape.gated else 0
    masks = 2 * shape.hidden if shape.dropout else 0
    scores = shape.heads * width * (2 * bytes_each + (1 if shape.dropout else 0))
    return tokens * (bytes_each * elements + copies + masks + scores)


def training_activations(
    shape: Shape, tokens: int, *, checkpointing: bool, predicted: int, width: int = 0, bytes_each: int = 2
) -> float:
    """Bytes of all layers' and the output layer's activations for one micro-batch of ``tokens``.

    With ``checkpointing``, each layer keeps only its input, and one layer at a time is recomputed (Korthikanti et al.,
    section 5: 2 * tokens * hidden per layer). ``predicted`` tokens have logits in the compute precision and three
    float32 copies: the logits, the log-probabilities and their gradient."""
    one = layer_activations(shape, tokens, width=width, bytes_each=bytes_each)
    kept = shape.layers * tokens * shape.hidden * bytes_each + one if checkpointing else shape.layers * one
    return kept + predicted * shape.vocab * (bytes_each + 12)


def inference_activations(shape: Shape, tokens: int, *, logits: int, bytes_each: int = 2) -> float:
    """Bytes of one layer's activations in a pass over ``tokens``, and of ``logits`` rows of the vocabulary in float32,
    three times (logits, their sorted copy, probabilities)."""
    one = 2 * shape.hidden + shape.head_dim * (shape.heads + 2 * shape.kv_heads) + 2 * shape.intermediate
    return tokens * one * bytes_each + 12 * logits * shape.vocab


def kv_bytes(shape: Shape, dtype: str) -> int:
    """Bytes of one token's keys and values in all layers: 2 * layers * kv heads * head dim * bytes (Pope et al.,
    section 3.3)."""
    return 2 * shape.layers * shape.kv_heads * shape.head_dim * BYTES[dtype]


# --- operations and time ---------------------------------------------------------------------------------------------


def forward_operations(shape: Shape, tokens: float, length: float) -> float:
    """Operations of a forward pass over sequences of ``length`` tokens: 2 per multiplied parameter and token, plus
    2 * layers * attention width * length for scores and weighted sums, already halved for causal attention."""
    attention = 2 * shape.layers * shape.heads * shape.head_dim * length
    return tokens * (2 * shape.multiplied + attention)


def training_operations(shape: Shape, tokens: float, length: float, *, checkpointing: bool, frozen: bool) -> float:
    """Operations of forward and backward passes: three forward passes (6 per parameter and token), two if the weights
    are ``frozen`` and only activations have gradients (LoRA); one more with ``checkpointing`` for recomputation."""
    passes = (2 if frozen else 3) + (1 if checkpointing else 0)
    return passes * forward_operations(shape, tokens, length)


def decode_seconds(
    shape: Shape,
    weights: float,
    rows: int,
    length: float,
    dtype: str,
    *,
    bandwidth: float,
    operations: float,
    floor: float,
) -> float:
    """Seconds of one decoding step of ``rows`` sequences of ``length`` tokens: reading weights and KV cache at
    ``bandwidth`` (bytes/s) or computing at ``operations`` (per second), whichever is longer, and at least ``floor``."""
    reading = (weights + rows * length * kv_bytes(shape, dtype)) / bandwidth
    return max(reading, forward_operations(shape, rows, 2 * length) / operations, floor)
