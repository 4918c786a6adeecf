"""FP8 activations: ``QuantizedActivation`` and the quantisation that every backend reproduces."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_w4a8 import formats
from jax_w4a8.product import blocks_along

BLOCKS = (32, 128, "row")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class QuantizedActivation:
    """Activations as E4M3 codes with UE8M0 scales; a pytree.

    Attributes:
      codes: float8_e4m3fn ``[..., K]``.
      scales: uint8 ``[..., ceil(K / block)]`` (one a row for ``block="row"``), UE8M0.
      block: elements along K that share a scale: 32, 128 or ``"row"``.
      dtype: dtype that the activations had, the default result dtype of a product.
    """

    codes: jax.Array
    scales: jax.Array
    block: int | str = dataclasses.field(default=128, metadata={"static": True})
    dtype: Any = dataclasses.field(default=jnp.dtype("float32"), metadata={"static": True})

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical shape ``(..., K)``."""
        return self.codes.shape

    def dequantize(self, dtype: jax.typing.DTypeLike | None = None) -> jax.Array:
        """The activations ``[..., K]`` that the codes stand for, in ``dtype`` (default its own)."""
        k = self.codes.shape[-1]
        width = block_width(self.block, k)
        scales = jnp.repeat(self.scales, max(width, 1), axis=-1)[..., :k]
        first, second = formats.scale_factors(scales)
        values = formats.decode_e4m3(self.codes) * first * second
        return values.astype(self.dtype if dtype is None else dtype)

    def __repr__(self) -> str:
        shape = getattr(self.codes, "shape", "?")
        return (
            f"QuantizedActivation(shape={shape}, block={self.block!r}, dtype={self.dtype}; "
            "use jax_w4a8.dot(a, w), or a.dequantize() for a float array)"
        )


def check_block(block: Any) -> int:
    """``block`` as the number that a product carries: 32, 128, or 0 for ``"row"``."""
    if isinstance(block, (int, str)) and not isinstance(block, bool) and block in BLOCKS:
        return 0 if block == "row" else int(block)
    raise ValueError(f"block: expected 32, 128 or 'row', got {block!r}")


def block_width(block: int | str, k: int) -> int:
    """Elements along a row of ``k`` that share a scale."""
    return k if block in ("row", 0) else int(block)


def quantize_blocks(x: jax.Array, block: int) -> tuple[jax.Array, jax.Array]:
    """Quantises ``[..., K]`` floats; the definition that every backend matches bit for bit.

    The scale of a block is 2**ceil(log2(amax / 448)), at least 2**-127, and 1 for zeros; elements
    are rounded to nearest even and saturate. A block with a NaN or an infinity gets codes 0x7F and
    the scale NaN. Float32 and bfloat16 subnormals count as zeros of their sign.

    Args:
      x: float32, bfloat16 or float16 ``[..., K]``.
      block: 32, 128, or 0 for one scale a row.

    Returns:
      float8_e4m3fn ``[..., K]`` and uint8 ``[..., blocks]``.
    """
    *lead, k = x.shape
    width, count = block_width(block, k), blocks_along(k, block)
    bits = formats.float_bits(x)
    padding = [(0, 0)] * len(lead) + [(0, count * width - k)]
    blocks = jnp.pad(bits, padding).reshape(*lead, count, width)
    amax = jnp.max(blocks & 0x7FFFFFFF, axis=-1, initial=0)
    scales = formats.scale_bytes_ceil(amax, 8, 0x600000)
    finite = formats.is_finite_bits(amax)[..., None]
    # 2**-127 is a subnormal float32, its inverse is not: only the inverse is ever needed.
    inverse = formats.power_of_two(formats.SCALE_ONE - scales)[..., None]
    codes = formats.encode_e4m3(lax.bitcast_convert_type(blocks, jnp.float32) * inverse)
    nan = lax.bitcast_convert_type(jnp.uint8(formats.E4M3_NAN), jnp.float8_e4m3fn)
    codes = jnp.where(finite, codes, nan).reshape(*lead, count * width)[..., :k]
    scales = jnp.where(finite[..., 0], scales, formats.SCALE_NAN).astype(jnp.uint8)
    return codes, scales
