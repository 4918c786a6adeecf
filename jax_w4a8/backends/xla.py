"""The fallback in plain JAX, which serves everywhere and is the reference of every backend.

Activations and weights are dequantised to bfloat16, which holds them exactly, and multiplied with
float32 accumulation. That is the fastest exact dot of every platform tried: on a CPU it beats
float32 operands, with and without bfloat16 instructions. FP8 operands are not used: a scale for
every 32 weights along K would have to be multiplied into an FP8 code, where it does not fit, and
Hopper's FP8 tensor cores keep only about 14 bits below the largest term.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from jax_w4a8 import activations, formats
from jax_w4a8.backends.base import Arrays, Backend
from jax_w4a8.product import Product
from jax_w4a8.varying import vary_like

# Scales are taken relative to the largest of their row, moved up by this many binades. Nothing then
# leaves float32 and bfloat16 while the scales of a row spread over no more than _MOST_SPREAD, and
# those of two rows that meet over no more than _MOST_TOGETHER; what spreads further is summed block
# by block.
_HEADROOM = 45
_MOST_SPREAD = 160
_MOST_TOGETHER = 200

# The exponent of a sum of nothing, below all others.
_NOTHING = -1000

# From here on the dot itself is most of a product's time, and two of them cost twice as much.
_MANY_ROWS = 512

# Elements of a row from this fraction of its largest on are added apart from those below: about
# the middle of the binades that E4M3 has.
_LARGE = 2.0**-8


class XlaBackend(Backend):
    """Dequantise, then dot, in plain JAX."""

    name = "xla"

    def quantize(self, x: jax.Array, block: int) -> Arrays:
        return activations.quantize_blocks(x, block)

    def product(
        self, product: Product, x: Arrays, sizes: jax.Array | None, weight: Arrays
    ) -> jax.Array:
        codes, scales = x if product.quantized_x else self.quantize(x[0], product.block)
        rows = _lay_out_x(product, codes, scales)

        def tile(rows: Arrays, weight: Arrays) -> jax.Array:
            return _multiply(product, rows, weight)

        if product.kind == "dense":
            return tile(rows, weight)
        assert sizes is not None
        return by_group(product, rows, sizes, weight, tile, product.n, product.out_dtype)


BACKEND = XlaBackend()


def _multiply(product: Product, rows: Arrays, weight: Arrays) -> jax.Array:
    """Rows as ``_lay_out_x`` gives them by one weight: ``[M, N]``."""
    values, x_exponents, codes, scales = rows
    x_spread, w_spread = _spread(scales), _spread(weight[1])
    far_apart = jnp.maximum(x_spread, w_spread) > _MOST_SPREAD
    far_apart |= x_spread + w_spread > _MOST_TOGETHER
    # Only a float32 result shows the bits that this saves; with many rows it would cost too much.
    apart = product.out_dtype == jnp.float32 and values.shape[0] < _MANY_ROWS
    parts = _split_apart(values) if apart else values

    def at_once() -> jax.Array:
        w_relative, w_exponents = _relative(weight[1])
        w = formats.decode_packed(weight[0], (w_relative,), jnp.bfloat16)
        sums = contract(parts, w)
        if apart:
            large, small = jnp.split(sums, 2)
            sums = large + small
        return _scale(sums, x_exponents[:, None] + w_exponents).astype(product.out_dtype)

    def by_block() -> jax.Array:
        return _scale(*_sum_by_block((codes, scales), weight)).astype(product.out_dtype)

    return lax.cond(far_apart, by_block, at_once)


def _sum_by_block(rows: Arrays, weight: Arrays) -> tuple[jax.Array, jax.Array]:
    """Sums relative to the largest of their own terms, and the exponents that they lack."""
    (codes, scales), (w_codes, w_scales) = rows, weight
    x = formats.decode_e4m3(codes).reshape(*scales.shape, formats.WEIGHT_BLOCK)
    w = formats.decode_e2m1(formats.unpack_nibbles(w_codes))
    w = w.reshape(*w_scales.shape, formats.WEIGHT_BLOCK)

    def step(block: jax.Array, state: Arrays) -> Arrays:
        sums, exponents = state
        at = functools.partial(lax.dynamic_index_in_dim, index=block, axis=1, keepdims=False)
        part = contract(at(x).astype(jnp.bfloat16), at(w).astype(jnp.bfloat16))
        x_byte, w_byte = at(scales).astype(jnp.int32)[:, None], at(w_scales).astype(jnp.int32)
        is_nan = (x_byte == formats.SCALE_NAN) | (w_byte == formats.SCALE_NAN)
        part = jnp.where(is_nan, jnp.nan, part)
        exponent = x_byte + w_byte - 2 * formats.SCALE_ONE
        size = (lax.bitcast_convert_type(part, jnp.int32) >> 23 & 255) - 127 + exponent
        top = jnp.maximum(exponents, jnp.where(part == 0, _NOTHING, size))
        # Zeros may have any scale; what multiplies them need only be finite.
        factor = formats.power_of_two(jnp.minimum(exponent - top, _HEADROOM))
        return sums * formats.power_of_two(exponents - top) + part * factor, top

    shape = (codes.shape[0], w_codes.shape[0])
    start: Arrays = (jnp.zeros(shape, jnp.float32), jnp.full(shape, _NOTHING, jnp.int32))
    start = tuple(vary_like(a, (*rows, *weight)) for a in start)
    sums, exponents = lax.fori_loop(0, scales.shape[1], step, start)
    return sums, exponents


def _split_apart(x: jax.Array) -> jax.Array:
    """``[M, C]`` as ``[2M, C]``: the large elements of each row, then the small; zeros elsewhere.

    The sum of either nearly always fits float32's 24 bits, whatever the order of its terms; the sum
    over a whole row, such as after GELU, often does not. What is left is one rounding, the same as
    in another backend that drops nothing: a last bit would flip codes of later layers.
    """
    magnitude = jnp.abs(x)
    is_large = magnitude >= jnp.max(magnitude, axis=1, keepdims=True) * _LARGE
    zero = jnp.zeros_like(x)
    return jnp.concatenate([jnp.where(is_large, x, zero), jnp.where(is_large, zero, x)])


def contract(a: jax.Array, b: jax.Array) -> jax.Array:
    """``[M, C]`` by ``[N, C]`` to float32 ``[M, N]``, with float32 accumulation."""
    return lax.dot_general(
        a,
        b,
        (((1,), (1,)), ((), ())),
        precision=lax.Precision.HIGHEST,
        preferred_element_type=jnp.float32,
    )


def by_group(
    product: Product,
    rows: Arrays,
    sizes: jax.Array,
    weight: Arrays,
    tile: Callable[[Arrays, Arrays], jax.Array],
    width: int,
    dtype: jax.typing.DTypeLike,
) -> jax.Array:
    """Runs ``tile`` over tiles of rows, each with its own group's weight.

    A loop over as many tiles as the sizes make, known only on the device: groups without rows
    cost nothing, and no more than one group's weight is ever dequantised.

    Args:
      product: a grouped or masked product.
      rows: arrays with x's rows in front, ``[M, ...]`` or ``[E, Mmax, ...]``.
      sizes: int32 ``[E]``.
      weight: arrays with E in front.
      tile: ``(rows [T, ...], weight of one group) -> [T, width]``.
      width: columns of the result.
      dtype: dtype of the result.

    Returns:
      ``[M, width]`` or ``[E, Mmax, width]``, zero where no group has a row.
    """
    masked = product.kind == "masked"
    if masked:
        rows = tuple(a.reshape(-1, *a.shape[2:]) for a in rows)
        starts = jnp.arange(product.groups, dtype=jnp.int32) * product.m
        counts = jnp.clip(sizes, 0, product.m)
    else:
        # Saturating sums: sizes that promise more rows than there are cannot overflow int32.
        sizes = jnp.clip(sizes, 0, product.m)
        ends = lax.associative_scan(lambda a, b: jnp.minimum(a + b, product.m), sizes)
        starts = jnp.concatenate([jnp.zeros_like(ends[:1]), ends[:-1]])
        counts = ends - starts
    total = rows[0].shape[0]
    height = _tile_height(total, product.groups)
    tiles_before = jnp.cumsum(-(-counts // height))
    # A last tile may reach past the rows: give it room instead of letting its start be clamped.
    rows = tuple(jnp.pad(a, [(0, height)] + [(0, 0)] * (a.ndim - 1)) for a in rows)

    def step(index: jax.Array, y: jax.Array) -> jax.Array:
        group = jnp.searchsorted(tiles_before, index, side="right").astype(jnp.int32)
        first = jnp.where(group > 0, tiles_before[jnp.maximum(group - 1, 0)], 0)
        offset = (index - first) * height
        start = starts[group] + offset
        some_rows = tuple(lax.dynamic_slice_in_dim(a, start, height) for a in rows)
        some = tile(some_rows, tuple(lax.dynamic_index_in_dim(a, group, 0, False) for a in weight))
        inside = jnp.arange(height)[:, None] < counts[group] - offset
        before = lax.dynamic_slice_in_dim(y, start, height)
        return lax.dynamic_update_slice_in_dim(y, jnp.where(inside, some, before), start, 0)

    y = vary_like(jnp.zeros((total + height, width), dtype), (sizes, *rows, *weight))
    y = lax.fori_loop(0, tiles_before[-1], step, y)[:total]
    return y.reshape(product.groups, product.m, width) if masked else y


def _tile_height(rows: int, groups: int) -> int:
    """Rows of one tile: about what a group has, so that most weights are dequantised once."""
    share = -(-rows // max(groups, 1))
    return min(512, max(16, 1 << (share - 1).bit_length()), max(rows, 1))


def _lay_out_x(product: Product, codes: jax.Array, scales: jax.Array) -> Arrays:
    """Values ``[..., k_padded]`` and the exponent a row that they are relative to; and for sums by
    block, codes ``[..., k_padded]``, zero past K, and a scale for every 32 of them."""
    padding = [(0, 0)] * (codes.ndim - 1) + [(0, product.k_padded - product.k)]
    codes = jnp.pad(codes, padding)
    width = activations.block_width(product.block, product.k)
    of_block = jnp.arange(product.k_padded // formats.WEIGHT_BLOCK) * formats.WEIGHT_BLOCK // width
    scales = scales[..., of_block]
    relative, exponents = _relative(scales)
    relative = jnp.repeat(relative, formats.WEIGHT_BLOCK, axis=-1)
    values = (formats.decode_e4m3(codes) * relative).astype(jnp.bfloat16)
    return values, exponents, codes, scales


def _spread(scales: jax.Array) -> jax.Array:
    """Binades between the largest and the smallest scale of a row, at most, of all rows."""
    byte = scales.astype(jnp.int32)
    largest = jnp.max(jnp.where(byte == formats.SCALE_NAN, 0, byte), axis=-1, initial=0)
    return jnp.max(largest - jnp.min(byte, axis=-1, initial=formats.SCALE_NAN), initial=0)


def _relative(scales: jax.Array) -> Arrays:
    """UE8M0 ``[..., B]`` as float32 factors times 2**exponent, one int32 exponent a row."""
    byte = scales.astype(jnp.int32)
    is_nan = byte == formats.SCALE_NAN
    exponent = jnp.max(jnp.where(is_nan, 0, byte), axis=-1, keepdims=True) - _HEADROOM
    factors = jnp.where(is_nan, jnp.nan, formats.power_of_two(byte - exponent))
    return factors, exponent[..., 0] - formats.SCALE_ONE


def _scale(sums: jax.Array, exponents: jax.Array) -> jax.Array:
    """``sums * 2**exponents`` in two halves, since the whole may exceed float32's exponents."""
    half = exponents >> 1
    return sums * formats.power_of_two(half) * formats.power_of_two(exponents - half)
