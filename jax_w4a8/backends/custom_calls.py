"""What the compiled backends have in common."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jax_w4a8.backends.base import Arrays
from jax_w4a8.product import Product, blocks_along


def quantize(target: str, operands: Arrays, block: int) -> Arrays:
    """Codes and scales that ``target`` makes of its operands.

    Args:
      target: name of the custom call.
      operands: float arrays ``[..., K]``.
      block: 32, 128, or 0 for one scale a row.

    Returns:
      float8_e4m3fn ``[..., K]`` and uint8 ``[..., blocks]``.
    """
    *lead, k = operands[0].shape
    results = (
        jax.ShapeDtypeStruct((*lead, k), jnp.float8_e4m3fn),
        jax.ShapeDtypeStruct((*lead, blocks_along(k, block)), jnp.uint8),
    )
    codes, scales = jax.ffi.ffi_call(target, results)(*operands, block=block)
    return codes, scales


def too_large(product: Product) -> str | None:
    """Why the CUDA kernels, which count in 32 bits, cannot compute ``product``, or None."""
    if max(product.rows, product.n, product.k) >= 1 << 30:
        return "its kernels count rows, columns and elements along K below 2**30"
    return None
