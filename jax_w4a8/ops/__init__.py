"""The products, dense and grouped: checks, gradient, batching and lowering."""

from jax_w4a8.ops.dot import dot
from jax_w4a8.ops.export import export_safety_checks, load_kernels
from jax_w4a8.ops.grouped_dot import grouped_dot, masked_grouped_dot
from jax_w4a8.ops.layout import prepack, unpack
from jax_w4a8.ops.quantize_activation import quantize_activation

__all__ = [
    "dot",
    "export_safety_checks",
    "grouped_dot",
    "load_kernels",
    "masked_grouped_dot",
    "prepack",
    "quantize_activation",
    "unpack",
]
