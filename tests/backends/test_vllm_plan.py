"""The plan's KV cache size equals vLLM's own."""

from __future__ import annotations

import pytest
import torch

from selfimprove.core.yaml import read_yaml
from selfimprove.pipeline.plan.formulas import kv_bytes
from selfimprove.pipeline.plan.shapes import TABLE, read_shape

pytestmark = pytest.mark.backend


@pytest.mark.parametrize("model", read_yaml(TABLE))
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_the_plans_kv_cache_bytes_per_token_equal_vllms(model: str, dtype: str) -> None:
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    shape = read_shape(read_yaml(TABLE)[model], model)
    layer = FullAttentionSpec(
        block_size=16, num_kv_heads=shape.kv_heads, head_size=shape.head_dim, dtype=getattr(torch, dtype)
    )
    assert layer.page_size_bytes * shape.layers == 16 * kv_bytes(shape, dtype)
