"""``quantize_activation``: FP8 codes and scales to use in several products."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jax_w4a8.activations import QuantizedActivation, check_block
from jax_w4a8.backends import current
from jax_w4a8.ops.arguments import check_floats
from jax_w4a8.ops.primitives import bind_quantize


def quantize_activation(x: jax.Array | Any, *, block: int | str = 128) -> QuantizedActivation:
    """Quantises activations to E4M3 codes with power-of-two scales, as every product does.

    The scale of a block is 2**ceil(log2(amax / 448)), 1 for a block of zeros; codes are rounded to
    nearest even and saturate (the recipe of DeepGEMM; with ``block=32`` it is OCP MXFP8 with a
    scale that never clips). A block that holds a NaN or an infinity becomes NaN. No gradient
    flows through: pass floats to a product that is differentiated.

    Args:
      x: ``[..., K]`` float32, bfloat16 or float16.
      block: 32, 128 or ``"row"``; a K that is not a multiple makes a shorter last block.

    Returns:
      Codes ``[..., K]`` and scales ``[..., ceil(K / block)]``, or ``[..., 1]`` for ``"row"``.

    Raises:
      TypeError: ``x`` is not of a dtype listed.
      ValueError: ``block`` is not one of those listed, or ``x`` is a scalar.
    """
    width = check_block(block)
    x = jax.lax.stop_gradient(check_floats(x))
    codes, scales = bind_quantize(x, width, current())
    return QuantizedActivation(codes, scales, block, np.dtype(x.dtype))
