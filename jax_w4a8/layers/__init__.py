"""Flax NNX layers with FP4 weights; importing this package imports Flax."""

from __future__ import annotations

from jax_w4a8.layers.convert import prepack_layers, quantize_layers
from jax_w4a8.layers.dense import PackedWeight, W4A8Dense

__all__ = ["PackedWeight", "W4A8Dense", "prepack_layers", "quantize_layers"]
