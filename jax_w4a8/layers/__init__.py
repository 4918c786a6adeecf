"""Flax NNX layers with FP4 weights; importing this package imports Flax."""

from __future__ import annotations

from jax_w4a8.layers.convert import prepack_layers, quantize_layers
from jax_w4a8.layers.dense import PackedWeight, W4A8Dense
from jax_w4a8.layers.expert_parallel import expert_parallel, shard_experts
from jax_w4a8.layers.experts import MoEConfig
from jax_w4a8.layers.moe import MoE, W4A8MoE

__all__ = [
    "MoE",
    "MoEConfig",
    "PackedWeight",
    "W4A8Dense",
    "W4A8MoE",
    "expert_parallel",
    "prepack_layers",
    "quantize_layers",
    "shard_experts",
]
