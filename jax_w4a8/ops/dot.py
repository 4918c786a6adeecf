"""``dot``: the dense product."""

from __future__ import annotations

import math

import jax

from jax_w4a8.activations import QuantizedActivation
from jax_w4a8.ops.arguments import check_activations, check_weight, run
from jax_w4a8.weights import QuantizedWeight


def dot(
    x: jax.Array | QuantizedActivation,
    w: QuantizedWeight,
    *,
    block: int | str | None = None,
    out_dtype: jax.typing.DTypeLike | None = None,
) -> jax.Array:
    """``x @ w`` with FP8 activations and FP4 weights, accumulated in float32.

    ``x`` is quantised to E4M3 with one power-of-two scale for every ``block`` elements along K.
    The gradient with respect to ``x`` is ``g @ dequantize(w)^T``, as if ``x`` had not been
    quantised; ``w`` is frozen and has none. A NaN or an infinity in a row of ``x`` makes that row
    of the result NaN.

    Args:
      x: ``[..., K]`` float32, bfloat16, float16, or a ``QuantizedActivation``.
      w: ``[K, N]``, from ``jax_w4a8.quantize``.
      block: 32, 128 or ``"row"``; 128 unless ``x`` is quantised already.
      out_dtype: float32, bfloat16 or float16; the dtype of ``x`` unless said otherwise.

    Returns:
      ``[..., N]`` in ``out_dtype``.

    Raises:
      TypeError: ``x`` or ``w`` is not of a kind listed, or a dtype is not.
      ValueError: the shapes do not match, or ``block`` is not one of those listed.
      BackendError: the backend that was named cannot compute this product.
    """
    activations = check_activations(x, block)
    w = check_weight(w, 2, "dot")
    lead = activations.shape[:-1]
    y = run("dense", activations.reshape(math.prod(lead)), None, w, out_dtype)
    return y.reshape(*lead, w.n)
