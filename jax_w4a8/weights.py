"""FP4 weights: ``QuantizedWeight``, ``quantize`` and the layouts that a weight can be in."""

from __future__ import annotations

import math
from typing import Any, Literal, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_w4a8 import formats
from jax_w4a8.checks import as_array, float_array
from jax_w4a8.formats import WEIGHT_BLOCK, round_up

ScaleRule = Literal["ceil", "floor", "even", "mse"]
RULES = ("ceil", "floor", "even", "mse")


@jax.tree_util.register_pytree_with_keys_class
class QuantizedWeight:
    """An FP4 weight: E2M1 codes with a UE8M0 scale for every 32 along K (OCP MXFP4); a pytree.

    Make one with ``jax_w4a8.quantize``, or from codes and scales that exist already::

        QuantizedWeight(codes, scales)            # K = 2 * codes.shape[-1]
        QuantizedWeight(codes, scales, k=2880)    # K not a multiple of 32, codes zero past it

    Attributes:
      codes: uint8 ``[..., N, K / 2]`` in the plain layout, two codes a byte, low nibble = even k.
      scales: uint8 ``[..., N, K / 32]`` in the plain layout, UE8M0: 2**(byte - 127).
      extras: further arrays that another layout needs; empty in the plain layout.
      k, n: length of the contraction and of the result.
      layout: ``"plain"``, or the layout of the backend whose kernels take it.
    """

    codes: jax.Array
    scales: jax.Array
    extras: tuple[jax.Array, ...]
    k: int
    n: int
    layout: str

    def __init__(self, codes: Any, scales: Any, *, k: int | None = None):
        codes, scales = _storage(codes, scales)
        if codes.ndim < 2:
            raise ValueError(f"codes: expected shape [..., N, K / 2], got {codes.shape}")
        n, bytes_k = codes.shape[-2:]
        k = 2 * bytes_k if k is None else k
        _check_plain(codes.shape, scales.shape, k)
        _check_finite_scales(scales)
        _fill(self, codes, scales, (), k, n, "plain")

    @classmethod
    def from_arrays(
        cls, arrays: tuple[jax.Array, ...], *, k: int, n: int, layout: str
    ) -> QuantizedWeight:
        """A weight from the arrays of any layout, unchecked; what ``prepack`` returns."""
        return _fill(object.__new__(cls), arrays[0], arrays[1], tuple(arrays[2:]), k, n, layout)

    @property
    def arrays(self) -> tuple[jax.Array, ...]:
        """All arrays of the layout: codes, scales and extras."""
        return (self.codes, self.scales, *self.extras)

    @property
    def lead(self) -> tuple[int, ...]:
        """Dimensions in front of ``[K, N]``: ``(E,)`` for experts, ``()`` for a dense weight."""
        return self.scales.shape[:-LAYOUT_RANK]

    @property
    def shape(self) -> tuple[int, ...]:
        """Logical shape ``(..., K, N)``."""
        return (*self.lead, self.k, self.n)

    @property
    def ndim(self) -> int:
        """Number of logical dimensions."""
        return len(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes stored: N * K / 2 of codes plus the scales, in the plain layout."""
        return sum(math.prod(a.shape) * a.dtype.itemsize for a in self.arrays)

    def dequantize(self, dtype: jax.typing.DTypeLike = jnp.float32) -> jax.Array:
        """The weight ``[..., K, N]`` that the codes stand for, in ``dtype``.

        Exact in float32 and bfloat16 wherever the value is in their range.

        Raises:
          ValueError: the weight is in a packed layout; ``jax_w4a8.unpack`` it first.
        """
        if self.layout != "plain":
            raise ValueError(
                f"dequantize: expected a weight in the plain layout, got {self!r}; "
                "call jax_w4a8.unpack(w).dequantize()"
            )
        values = formats.decode_packed(self.codes, formats.scale_factors(self.scales), dtype)
        return jnp.swapaxes(values, -1, -2)[..., : self.k, :]

    def tree_flatten_with_keys(self) -> tuple[tuple[tuple[Any, Any], ...], tuple[int, int, str]]:
        key = jax.tree_util.GetAttrKey
        children = (
            (key("codes"), self.codes),
            (key("scales"), self.scales),
            (key("extras"), self.extras),
        )
        return children, (self.k, self.n, self.layout)

    @classmethod
    def tree_unflatten(cls, static: tuple[int, int, str], children: Any) -> QuantizedWeight:
        # A shard of a plain weight, as shard_map hands it out, has the K and N of its arrays.
        k, n, layout = static
        codes, scales, extras = children
        if layout == "plain" and len(getattr(codes, "shape", ())) >= LAYOUT_RANK:
            k, n = min(k, 2 * codes.shape[-1]), codes.shape[-2]
        return _fill(object.__new__(cls), codes, scales, extras, k, n, layout)

    def __repr__(self) -> str:
        lead = "".join(f"{d}, " for d in getattr(self.scales, "shape", ())[:-LAYOUT_RANK])
        return (
            f"QuantizedWeight(shape=({lead}{self.k}, {self.n}), layout={self.layout!r}; "
            "use jax_w4a8.dot(x, w), or w.dequantize() for a float array)"
        )

    def __setattr__(self, name: str, value: Any) -> NoReturn:
        raise AttributeError(f"QuantizedWeight is immutable: cannot set {name!r}")

    # Arithmetic with floats would silently mean packed bytes; each way in says what to call.
    __array_ufunc__ = None

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(
            f"{self!r} is packed FP4 and takes no part in float arithmetic; call "
            "jax_w4a8.dot(x, w) for a product, or w.dequantize() for a float array"
        )

    __matmul__ = __rmatmul__ = __mul__ = __rmul__ = __add__ = __radd__ = _refuse
    __sub__ = __rsub__ = __truediv__ = __rtruediv__ = __neg__ = _refuse
    __array__ = __jax_array__ = _refuse


LAYOUT_RANK = 2
"""Trailing dimensions of every layout's ``scales``; what is in front is the weight's own."""


def quantize(kernel: Any, *, rule: ScaleRule = "mse") -> QuantizedWeight:
    """Quantises a float kernel to FP4.

    Blocks of 32 along K share a power-of-two scale; codes are rounded to nearest even and saturate
    at 6. K is padded with zeros to a multiple of 32.

    Args:
      kernel: float32, bfloat16 or float16 ``[..., K, N]``: ``[K, N]``, or ``[E, K, N]``.
      rule: how a block's scale follows from its largest magnitude ``amax``:
        ``"ceil"`` 2**ceil(log2(amax / 6)), which never clips;
        ``"floor"`` 2**(floor(log2(amax)) - 2), the OCP MX specification's (v1.0, section 6.3);
        ``"even"`` as floor, with amax first rounded to E2M1's precision;
        ``"mse"`` whichever of ceil and floor gives the smaller squared error in the block.

    Returns:
      The weight in the plain layout.

    Raises:
      TypeError: ``kernel`` is not a float array.
      ValueError: fewer than two dimensions, an unknown rule, or a NaN or infinity in ``kernel``.
        Under jit, where values are not known, such a block gets the scale NaN.
    """
    if isinstance(kernel, QuantizedWeight):
        raise TypeError(f"kernel: expected a float array [..., K, N], got {kernel!r}")
    kernel = float_array(kernel, "kernel", "[..., K, N]")
    if kernel.ndim < 2:
        raise ValueError(f"kernel: expected shape [..., K, N], got {tuple(kernel.shape)}")
    if rule not in RULES:
        raise ValueError(f"rule: expected one of {', '.join(RULES)}, got {rule!r}")
    codes, scales = _quantize_jit(kernel, rule)
    if not isinstance(scales, jax.core.Tracer) and np.any(np.asarray(scales) == formats.SCALE_NAN):
        raise ValueError(
            "kernel: expected finite weights, got NaN or infinity; "
            "replace them (jnp.nan_to_num) or find what produced them before quantising"
        )
    k, n = kernel.shape[-2:]
    return QuantizedWeight.from_arrays((codes, scales), k=k, n=n, layout="plain")


# The largest scale under which every code is a float32: 6 * 2**125.
_LAST_SCALE = formats.SCALE_ONE + 125


def quantize_blocks(kernel: jax.Array, rule: str) -> tuple[jax.Array, jax.Array]:
    """The arithmetic of ``quantize``: ``[..., K, N]`` to plain codes and scales, traceable."""
    *lead, k, n = kernel.shape
    padded = round_up(k, WEIGHT_BLOCK)
    bits = jnp.swapaxes(formats.float_bits(kernel), -1, -2)
    bits = jnp.pad(bits, [(0, 0)] * (len(lead) + 1) + [(0, padded - k)])
    bits = bits.reshape(*lead, n, padded // WEIGHT_BLOCK, WEIGHT_BLOCK)
    amax = jnp.max(bits & 0x7FFFFFFF, axis=-1, initial=0)
    finite = formats.is_finite_bits(amax)
    blocks = lax.bitcast_convert_type(bits, jnp.float32)
    scales = _scales(blocks, amax, rule)
    codes = formats.encode_e2m1(_scaled(blocks, scales))
    # A weight close to float32's largest rounds to what float32 has: 3 * 2**126, not 2**128.
    codes = jnp.where((scales > _LAST_SCALE)[..., None] & (codes & 7 > 5), codes & 8 | 5, codes)
    codes = jnp.where(finite[..., None], codes, 0).reshape(*lead, n, padded)
    scales = jnp.where(finite, scales, formats.SCALE_NAN).astype(jnp.uint8)
    return formats.pack_nibbles(codes), scales


_quantize_jit = jax.jit(quantize_blocks, static_argnums=1)


def _scaled(blocks: jax.Array, scales: jax.Array) -> jax.Array:
    return blocks * formats.power_of_two(formats.SCALE_ONE - scales)[..., None]


def _scales(blocks: jax.Array, amax: jax.Array, rule: str) -> jax.Array:
    ceil = formats.scale_bytes_ceil(amax, 2, 0x400000)
    if rule == "ceil":
        return ceil
    rounded = amax + 0x200000 if rule == "even" else amax
    floor = jnp.clip((rounded >> 23).astype(jnp.int32) - 2, 0, 254)
    floor = jnp.where(amax == 0, formats.SCALE_ONE, floor)
    if rule in ("floor", "even"):
        return floor
    # Errors in steps of 2**-10 of the ceil scale, summed as integers: no order of summation and
    # no fused multiply-add can change which of the two wins.
    wins = _squared_error(blocks, floor, 1 << 9) < _squared_error(blocks, ceil, 1 << 10)
    return jnp.where(wins, floor, ceil)


def _squared_error(blocks: jax.Array, scales: jax.Array, steps: int) -> jax.Array:
    values = _scaled(blocks, scales)
    error = jnp.abs(values - formats.decode_e2m1(formats.encode_e2m1(values)))
    error = (error * steps).astype(jnp.int32)
    return jnp.sum(error * error, axis=-1)


def _fill(
    weight: QuantizedWeight,
    codes: Any,
    scales: Any,
    extras: tuple[Any, ...],
    k: int,
    n: int,
    layout: str,
) -> QuantizedWeight:
    values = (codes, scales, extras, k, n, layout)
    for name, value in zip(QuantizedWeight.__annotations__, values, strict=True):
        object.__setattr__(weight, name, value)
    return weight


def _storage(codes: Any, scales: Any) -> tuple[jax.Array, jax.Array]:
    """Codes and scales as packed uint8, from any dtype that holds the same bits."""
    codes = as_array(codes, "codes", "uint8 [..., N, K / 2] with two E2M1 codes a byte")
    scales = as_array(scales, "scales", "UE8M0 bytes, uint8 [..., N, K / 32]")
    if codes.dtype == jnp.float4_e2m1fn:
        codes = formats.pack_nibbles(lax.bitcast_convert_type(codes, jnp.uint4).astype(jnp.uint8))
    if codes.dtype != jnp.uint8:
        raise TypeError(
            f"codes: expected uint8 [..., N, K / 2] with two E2M1 codes a byte, got {codes.dtype}"
        )
    if scales.dtype == jnp.float8_e8m0fnu:
        scales = lax.bitcast_convert_type(scales, jnp.uint8)
    if scales.dtype != jnp.uint8:
        raise TypeError(
            f"scales: expected UE8M0 bytes (uint8 or float8_e8m0fnu) [..., N, K / 32], got "
            f"{scales.dtype}; a float scale is not truncated to a power of two: dequantise the "
            "weight and call jax_w4a8.quantize"
        )
    return jnp.asarray(codes), jnp.asarray(scales)


def _check_plain(codes: tuple[int, ...], scales: tuple[int, ...], k: int) -> None:
    if not isinstance(k, int) or k < 0:
        raise ValueError(f"k: expected a non-negative int, got {k!r}")
    padded = round_up(k, WEIGHT_BLOCK)
    if codes[-1] != padded // 2:
        raise ValueError(
            f"codes: expected {padded // 2} bytes a row for K = {k} (padded to {padded}), got "
            f"shape {codes}; pad the codes with zeros to whole blocks of 32"
        )
    expected = (*codes[:-1], padded // WEIGHT_BLOCK)
    if scales != expected:
        raise ValueError(f"scales: expected shape {expected} for codes {codes}, got {scales}")


def _check_finite_scales(scales: jax.Array) -> None:
    if isinstance(scales, jax.core.Tracer):
        return
    if np.any(np.asarray(scales) == formats.SCALE_NAN):
        raise ValueError(
            "scales: expected finite UE8M0 scales (bytes 0 to 254), got 255, which is NaN; "
            "the weight or the file it came from is damaged"
        )
