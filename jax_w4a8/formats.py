"""E2M1, E4M3 and UE8M0: encode, decode and pack, as pure functions on arrays.

E2M1 and UE8M0 are the element and scale formats of the OCP Microscaling Formats (MX)
specification v1.0, sections 5.3.3 and 5.4.1; E4M3 is the finite-only ``float8_e4m3fn`` of the OCP
8-bit Floating Point specification v1.0.

Every rounding is done on the bits of float32, with integer operations and exact products by
powers of two. Float casts to these formats, ``exp2`` and ``log2`` are not used: XLA rounds some of
them twice, and differently on each backend.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

WEIGHT_BLOCK = 32
"""Weights along K that share one scale."""

E2M1_MAX = 6.0
E4M3_MAX = 448.0

SCALE_ONE = 127
"""The UE8M0 byte of 1."""
SCALE_NAN = 255
"""The UE8M0 byte of NaN."""
E4M3_NAN = 0x7F

_ABS = 0x7FFFFFFF
_MANTISSA = 0x007FFFFF
_MIN_NORMAL = 0x00800000
_INFINITY = 0x7F800000


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple of ``multiple`` that is at least ``value``."""
    return -(-value // multiple) * multiple


def float_bits(x: jax.Array) -> jax.Array:
    """The uint32 bits of ``x`` as float32, subnormals replaced by zeros of the same sign.

    Float16 subnormals are normal in float32 and stay.
    """
    bits = lax.bitcast_convert_type(x.astype(jnp.float32), jnp.uint32)
    return jnp.where((bits & _ABS) < _MIN_NORMAL, bits & ~jnp.uint32(_ABS), bits)


def is_finite_bits(magnitude: jax.Array) -> jax.Array:
    """Whether float32 magnitude bits (the sign cleared) are those of a finite number."""
    return magnitude < _INFINITY


def power_of_two(exponent: jax.Array) -> jax.Array:
    """float32 ``2**exponent`` for an int32 exponent clamped to [-127, 128]: 0 below, inf above."""
    field = jnp.clip(exponent + 127, 0, 255)
    return lax.bitcast_convert_type(field.astype(jnp.int32) << 23, jnp.float32)


def decode_e4m3(codes: jax.Array) -> jax.Array:
    """float32 values of ``float8_e4m3fn`` codes; exact, NaN for 0x7F and 0xFF."""
    return codes.astype(jnp.float32)


def encode_e4m3(x: jax.Array) -> jax.Array:
    """``float8_e4m3fn`` codes of ``x``: to nearest even, saturating at +-448; NaN stays NaN."""
    bits = float_bits(x)
    magnitude = bits & _ABS
    # 16384 has an ulp of 2**-9, E4M3's smallest step: the sum rounds subnormals to nearest even.
    value = lax.bitcast_convert_type(magnitude, jnp.float32)
    steps = lax.bitcast_convert_type(value + 16384.0, jnp.int32) - 0x46800000
    rounded = (magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20
    normal = rounded.astype(jnp.int32) - (120 << 3)
    is_subnormal = magnitude < (121 << 23)
    codes = jnp.where(is_subnormal, steps, jnp.minimum(normal, 0x7E))
    codes = jnp.where(magnitude > _INFINITY, E4M3_NAN, codes)
    codes = codes.astype(jnp.uint8) | ((bits >> 24) & 0x80).astype(jnp.uint8)
    return lax.bitcast_convert_type(codes, jnp.float8_e4m3fn)


def decode_e2m1(codes: jax.Array, dtype: jax.typing.DTypeLike = jnp.float32) -> jax.Array:
    """Values of E2M1 codes 0..15 (one a byte) in ``dtype``; exact in every float type."""
    code = codes.astype(jnp.int32)
    step = code & 7
    # Codes 2 to 7 are a float32 with the exponent field moved by 126; 0 and 1 (a half) are not.
    bits = (step << 22) + (126 << 23)
    bits = jnp.where(step == 1, 126 << 23, jnp.where(step == 0, 0, bits))
    bits = bits | ((code & 8) << 28)
    return lax.bitcast_convert_type(bits, jnp.float32).astype(dtype)


def encode_e2m1(x: jax.Array) -> jax.Array:
    """uint8 E2M1 codes 0..15 of finite ``x``: round to nearest even, saturating at +-6."""
    bits = float_bits(x)
    value = lax.bitcast_convert_type(bits & _ABS, jnp.float32)
    # A tie goes to the even code: down at 0.25, 1.25, 2.5 and 5, up at 0.75, 1.75 and 3.5.
    step = (value > 0.25).astype(jnp.uint8)
    for bound in (1.25, 2.5, 5.0):
        step += (value > bound).astype(jnp.uint8)
    for bound in (0.75, 1.75, 3.5):
        step += (value >= bound).astype(jnp.uint8)
    return step | ((bits >> 28) & 8).astype(jnp.uint8)


def pack_nibbles(codes: jax.Array) -> jax.Array:
    """``[..., K]`` codes 0..15 to ``[..., K / 2]`` bytes; the low nibble is the even k."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack_nibbles(packed: jax.Array) -> jax.Array:
    """``[..., K / 2]`` bytes to ``[..., K]`` codes 0..15; the inverse of ``pack_nibbles``."""
    pairs = jnp.stack([packed & 15, packed >> 4], axis=-1)
    return pairs.reshape(*packed.shape[:-1], 2 * packed.shape[-1])


def decode_packed(
    packed: jax.Array, factors: Sequence[jax.Array], dtype: jax.typing.DTypeLike = jnp.float32
) -> jax.Array:
    """Packed E2M1 ``[..., K / 2]`` times float32 factors of blocks ``[..., K / 32]``, in ``dtype``.

    The two nibbles of a byte are decoded apart and interleaved as finished numbers, which XLA's
    CPU compiler turns into about a third of the work of interleaving the codes.
    """

    def half(codes: jax.Array) -> jax.Array:
        values = decode_e2m1(codes.reshape(*factors[0].shape, WEIGHT_BLOCK // 2))
        for factor in factors:
            values = values * factor[..., None]
        return values.astype(dtype)

    pairs = jnp.stack([half(packed & 15), half(packed >> 4)], axis=-1)
    return pairs.reshape(*packed.shape[:-1], 2 * packed.shape[-1])


def decode_ue8m0(scales: jax.Array) -> jax.Array:
    """float32 values of UE8M0 bytes: 2**(byte - 127), NaN for 255.

    Byte 0 is 2**-127, a float32 subnormal, which arithmetic on some devices flushes to zero:
    multiply by ``scale_factors`` instead.
    """
    field = scales.astype(jnp.int32)
    bits = jnp.where(field == 0, 1 << 22, field << 23)
    bits = jnp.where(field == SCALE_NAN, 0x7FC00000, bits)
    return lax.bitcast_convert_type(bits, jnp.float32)


def scale_factors(scales: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Two float32 factors whose product is that of UE8M0 bytes; normal numbers, or NaN for 255."""
    exponent = scales.astype(jnp.int32) - SCALE_ONE
    half = exponent >> 1
    first = jnp.where(scales == SCALE_NAN, jnp.nan, power_of_two(half))
    return first, power_of_two(exponent - half)


def scale_bytes_ceil(amax: jax.Array, exponent: int, mantissa: int) -> jax.Array:
    """UE8M0 bytes of 2**ceil(log2(amax / limit)), for ``limit = 2**exponent * 1.mantissa``.

    Args:
      amax: uint32 bits of non-negative, finite float32 numbers.
      exponent: exponent of the element format's largest value.
      mantissa: float32 mantissa bits of that value.

    Returns:
      int32 in [0, 254]; 127 (a scale of 1) where ``amax`` is zero.
    """
    above = (amax & _MANTISSA) > mantissa
    byte = (amax >> 23).astype(jnp.int32) - exponent + above.astype(jnp.int32)
    return jnp.where(amax == 0, SCALE_ONE, jnp.clip(byte, 0, 254))
