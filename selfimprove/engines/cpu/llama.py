"""A faster forward pass for Llama-like models on a CPU: the same arithmetic in a third of the operations.

A small model's step is dominated by the library's overhead around hundreds of tiny operations. This implementation
covers models whose layers are exactly attention without biases and a gated MLP, each after an RMS norm (Llama,
Mistral, SmolLM, …). Other models, and any whose logits differ here, use the library (``decoder.Module``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from selfimprove.engines.cpu.slots import CacheShape, Rows

LAYER = {
    f"{name}.weight"
    for name in (
        "input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
        "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
    )
}  # fmt: skip
"""All the tensors of a supported layer."""

ROTATIONS = ("default", "linear", "llama3")
"""Types of rotary embedding in which an angle depends only on its position."""

TOLERANCE = 1e-3
"""Maximum difference of logits, relative to the largest; a misread config causes a far larger one."""


@dataclass
class _Layer:
    """One layer's weights; those with the same input are joined into one matrix, [out, in]."""

    norm: torch.Tensor
    qkv: torch.Tensor
    out: torch.Tensor
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    down: torch.Tensor


class Llama:
    """Implements ``forward.Forward``. The model's own weights become views of the joined ones, to save memory.

    Attributes:
        width: of an attention head.
    """

    def __init__(self, model: Any, context: int) -> None:
        inner, first = model.model, model.model.layers[0]
        attention = first.self_attn
        self.width: int = attention.head_dim
        self._heads = attention.q_proj.out_features // self.width
        self._kv_heads = attention.k_proj.out_features // self.width
        self._scale: float = attention.scaling
        self._eps: float = first.input_layernorm.variance_epsilon
        self._embedding, self._norm, self._head = inner.embed_tokens.weight, inner.norm.weight, model.lm_head.weight
        self._layers = [
            _Layer(
                norm=layer.input_layernorm.weight,
                qkv=_joined(layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj),
                out=layer.self_attn.o_proj.weight,
                mlp_norm=layer.post_attention_layernorm.weight,
                gate_up=_joined(layer.mlp.gate_proj, layer.mlp.up_proj),
                down=layer.mlp.down_proj.weight,
            )
            for layer in inner.layers
        ]
        cos, sin = inner.rotary_emb(self._embedding, torch.arange(context)[None])
        half = self.width // 2
        # The library's rotation is x * cos + (second half, first half) * sin, with the first half of sin negated.
        self._cos, self._sin = cos[0], torch.cat((-sin[0, :, :half], sin[0, :, half:]), -1)

    @classmethod
    def of(cls, model: Any, context: int) -> Llama | None:
        """A fast forward pass for ``model``; None if it is not supported (or not in float32 on a CPU)."""
        config: Any = model.config
        inner: Any = getattr(model, "model", None)
        weight = model.get_input_embeddings().weight
        if weight.device.type != "cpu" or weight.dtype != torch.float32 or not hasattr(inner, "rotary_emb"):
            return None
        outside = {name for name, _ in model.named_parameters() if ".layers." not in name}
        if (
            any({name for name, _ in layer.named_parameters()} != LAYER for layer in inner.layers)
            or not outside <= {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}
            or config.hidden_act not in ("silu", "swish")
            or inner.rotary_emb.rope_type not in ROTATIONS
        ):
            return None
        with torch.no_grad():  # not inference_mode: a trainer's own joined weights must stay usable for gradients
            made = cls(model, context)
            return made if made._agrees(model) else None

    def read(
        self, rows: Rows, ids: torch.Tensor, at: torch.Tensor, seen: torch.Tensor, last: torch.Tensor | None = None
    ) -> torch.Tensor | None:
        """See ``Forward.read``. The last layer's output is only computed at ``last``."""
        mask = torch.where(seen, 0.0, -torch.inf)[:, None]
        count, tokens = ids.shape
        x, cos, sin = self._begin(ids, at)
        for index, layer in enumerate(self._layers):
            query, keys, values = self._attended(rows, index, x, cos, sin)
            queries = query.view(count, tokens, self._heads, self.width).transpose(1, 2)
            if index == len(self._layers) - 1:
                if last is None:
                    return None
                there = torch.arange(count), last
                x = x.view(count, tokens, -1)[there]
                queries, mask = queries.transpose(1, 2)[there][:, :, None], mask[there[0], 0, last][:, None, None]
            mixed = F.scaled_dot_product_attention(
                queries, keys, values, mask, scale=self._scale, enable_gqa=self._heads != self._kv_heads
            )
            x = self._after(layer, x, mixed.transpose(1, 2).reshape(len(x), -1))
        return F.linear(self._normed(x, self._norm), self._head)

    def step(self, rows: Rows, ids: torch.Tensor, at: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
        """See ``Forward.step``. With one query per row, attention is two batched matrix products."""
        count = len(ids)
        mask = torch.where(seen, 0.0, -torch.inf).expand(count, self._kv_heads, -1).flatten(0, 1)[:, None]
        group = self._heads // self._kv_heads
        x, cos, sin = self._begin(ids, at)
        for index, layer in enumerate(self._layers):
            query, keys, values = self._attended(rows, index, x, cos, sin)
            queries = query.reshape(count * self._kv_heads, group, self.width)
            scores = torch.baddbmm(mask, queries, keys.flatten(0, 1).transpose(1, 2), alpha=self._scale)
            mixed = torch.bmm(torch.softmax(scores, -1), values.flatten(0, 1))
            x = self._after(layer, x, mixed.view(count, -1))
        return F.linear(self._normed(x, self._norm), self._head)

    def _begin(self, ids: torch.Tensor, at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Embeddings [rows x tokens, hidden], and the rotations [rows x tokens, 1, head dim] of their positions."""
        flat = at.flatten()
        return F.embedding(ids.flatten(), self._embedding), self._cos[flat][:, None], self._sin[flat][:, None]

    def _attended(
        self, rows: Rows, index: int, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries [rows x tokens, heads, dim]; keys and values [rows, kv heads, width, dim], new ones included."""
        layer, heads, both = self._layers[index], self._heads, self._heads + self._kv_heads
        made = F.linear(self._normed(x, layer.norm), layer.qkv).view(len(x), -1, self.width)
        turned, half = made[:, :both], self.width // 2
        swapped = torch.cat((turned[..., half:], turned[..., :half]), -1)
        turned = torch.addcmul(turned * cos, swapped, sin)
        keys, values = (part.view(rows.count, -1, *part.shape[1:]) for part in (turned[:, heads:], made[:, both:]))
        kept: Any = rows.cache.layers[index]
        return turned[:, :heads], *kept.update(keys.transpose(1, 2), values.transpose(1, 2))

    def _after(self, layer: _Layer, x: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:
        """The rest of a layer after attention: two residual sums, each fused into a matrix product."""
        x = torch.addmm(x, mixed, layer.out.t())
        gate, up = F.linear(self._normed(x, layer.mlp_norm), layer.gate_up).chunk(2, -1)
        return torch.addmm(x, F.silu(gate).mul_(up), layer.down.t())

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, weight.shape, weight, self._eps)

    def _agrees(self, model: Any) -> bool:
        """Whether a few tokens get the library's logits, within ``TOLERANCE``."""
        ids = torch.arange(8)[:, None] * 7 % len(self._embedding)
        shape = CacheShape(len(self._layers), self._kv_heads, self.width, self._embedding.dtype)
        rows, positions = Rows(shape, 1, len(ids), self._embedding.device), torch.arange(len(ids))
        drawn = []
        for place in positions:
            at = place[None, None]
            rows.aim(at, len(ids))
            drawn.append(self.step(rows, ids[place][None], at, positions[None, None] <= at))
        expected = model(input_ids=ids.t()).logits[0]
        return bool((torch.cat(drawn) - expected).abs().max() <= TOLERANCE * expected.abs().max())


def _joined(*parts: Any) -> torch.Tensor:
    whole = torch.cat([part.weight.data for part in parts])
    at = 0
    for part in parts:
        part.weight.data = whole[at : at + len(part.weight)]
        at += len(part.weight)
    return whole
