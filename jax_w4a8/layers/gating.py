"""Gated activations of feed-forward layers: halves of one product combined, in float32.

Gate and up projections come as one array ``[..., 2 * I]``: side by side (all gates, then all ups)
or interleaved (gate, up, gate, up, ..., as gpt-oss stores them).

Each function has a ``quantized_`` twin for the product that follows. It quantises the float32
result, without rounding it to the dtype of ``h`` first, so it has the very codes and scales of
``quantize_activation(function(h, out_dtype=float32))``.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from jax_w4a8.activations import QuantizedActivation
from jax_w4a8.ops import quantize_activation

ALPHA = 1.702
LIMIT = 7.0


def silu_mul(
    h: jax.Array, *, interleaved: bool = False, out_dtype: jax.typing.DTypeLike | None = None
) -> jax.Array:
    """``silu(gate) * up``.

    Args:
      h: floats ``[..., 2 * I]``.
      interleaved: whether gate and up alternate.
      out_dtype: dtype of the result, that of ``h`` unless said otherwise.

    Returns:
      ``[..., I]``.

    Raises:
      TypeError: ``h`` are not floats.
      ValueError: the last dimension is odd.
    """
    gate, up = _halves(h, interleaved)
    return (jax.nn.silu(gate) * up).astype(h.dtype if out_dtype is None else out_dtype)


def clamped_swiglu(
    h: jax.Array,
    *,
    alpha: float = ALPHA,
    limit: float = LIMIT,
    interleaved: bool = True,
    out_dtype: jax.typing.DTypeLike | None = None,
) -> jax.Array:
    """gpt-oss's SwiGLU: ``gate * sigmoid(alpha * gate) * (up + 1)``, both clamped before.

    ``gate`` is clamped to at most ``limit``, ``up`` to ``[-limit, limit]``; a NaN stays a NaN.

    Args:
      h: floats ``[..., 2 * I]``.
      alpha, limit: as above.
      interleaved: whether gate and up alternate, as in gpt-oss.
      out_dtype: dtype of the result, that of ``h`` unless said otherwise.

    Returns:
      ``[..., I]``.

    Raises:
      TypeError: ``h`` are not floats.
      ValueError: the last dimension is odd.
    """
    gate, up = _halves(h, interleaved)
    gate = jnp.minimum(gate, limit)
    up = jnp.clip(up, -limit, limit)
    y = gate * jax.nn.sigmoid(alpha * gate) * (up + 1)
    return y.astype(h.dtype if out_dtype is None else out_dtype)


def quantized_silu_mul(
    h: jax.Array, *, interleaved: bool = False, block: int | str = 128
) -> QuantizedActivation:
    """``silu_mul`` of ``h`` ``[..., 2 * I]``, quantised for a product; has no gradient."""
    return _quantize(silu_mul(h, interleaved=interleaved, out_dtype=jnp.float32), h, block)


def quantized_clamped_swiglu(
    h: jax.Array,
    *,
    alpha: float = ALPHA,
    limit: float = LIMIT,
    interleaved: bool = True,
    block: int | str = 128,
) -> QuantizedActivation:
    """``clamped_swiglu`` of ``h`` ``[..., 2 * I]``, quantised for a product; has no gradient."""
    y = clamped_swiglu(h, alpha=alpha, limit=limit, interleaved=interleaved, out_dtype=jnp.float32)
    return _quantize(y, h, block)


def _quantize(y: jax.Array, h: jax.Array, block: int | str) -> QuantizedActivation:
    return dataclasses.replace(quantize_activation(y, block=block), dtype=np.dtype(h.dtype))


def _halves(h: jax.Array, interleaved: bool) -> tuple[jax.Array, jax.Array]:
    if not jnp.issubdtype(h.dtype, jnp.floating):
        raise TypeError(f"h: expected floats [..., 2 * I], got {h.dtype}")
    if h.ndim < 1 or h.shape[-1] % 2:
        raise ValueError(f"h: expected shape [..., 2 * I], got {h.shape}")
    h = h.astype(jnp.float32)
    if interleaved:
        return h[..., 0::2], h[..., 1::2]
    half = h.shape[-1] // 2
    return h[..., :half], h[..., half:]
