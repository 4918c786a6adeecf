"""FP4 weights and FP8 activations (W4A8) for JAX.

w = jax_w4a8.quantize(kernel)      # [K, N] or [E, K, N] float -> QuantizedWeight
y = jax_w4a8.dot(x, w)             # [..., K] -> [..., N], inside jit too
"""

from __future__ import annotations

from typing import Any

from jax_w4a8.activations import QuantizedActivation
from jax_w4a8.backends import BackendError, use_backend
from jax_w4a8.ops import (
    dot,
    export_safety_checks,
    grouped_dot,
    load_kernels,
    masked_grouped_dot,
    prepack,
    quantize_activation,
    unpack,
)
from jax_w4a8.weights import QuantizedWeight, quantize

__version__ = "0.1.0"

__all__ = [
    "BackendError",
    "QuantizedActivation",
    "QuantizedWeight",
    "W4A8Dense",
    "W4A8MoE",
    "dot",
    "export_safety_checks",
    "grouped_dot",
    "load_kernels",
    "masked_grouped_dot",
    "prepack",
    "quantize",
    "quantize_activation",
    "unpack",
    "use_backend",
]

# Flax is optional: its layers are imported when first asked for.
_LAYERS = {"W4A8Dense": "jax_w4a8.layers.dense", "W4A8MoE": "jax_w4a8.layers.moe"}


def __getattr__(name: str) -> Any:
    if name in _LAYERS:
        import importlib

        return getattr(importlib.import_module(_LAYERS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
