"""The fallback in plain JAX, which serves everywhere and is the reference of every backend.

Activations and weights are dequantised to bfloat16, which holds them exactly, and multiplied with
float32 accumulation. That is the fastest exact dot of every platform tried: on a CPU it beats
float32 operands, with and without bfloat16 instructions. FP8 operands are not used: a scale for
every 32 weights along K would have to be multiplied into an FP8 code, where it does not fit, and
Hopper's FP8 tensor cores keep only about 14 bits below the largest term.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from jax_w4a8 import activations, formats
from jax_w4a8.backends.base import Arrays, Backend
from jax_w4a8.product import Product
from jax_w4a8.varying import vary_like

# Scales are taken relative to the largest of their row, moved up by this many binades: numbers
# then fit float32 and bfloat16 whatever the scales, and a row may spread over 170 binades.
_HEADROOM = 45
_FAR = 100

# From here on the dot itself is most of a product's time, and two of them cost twice as much.
_MANY_ROWS = 1024

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
        values, x_exponents = _dequantize_x(product, codes, scales)
        if product.kind == "dense":
            return _multiply(product, values, x_exponents, weight)

        def tile(rows: Arrays, weight: Arrays) -> jax.Array:
            values, exponents = rows
            return _multiply(product, values, exponents, weight)

        assert sizes is not None
        rows = (values, x_exponents)
        return by_group(product, rows, sizes, weight, tile, product.n, product.out_dtype)


BACKEND = XlaBackend()


def _multiply(
    product: Product, values: jax.Array, x_exponents: jax.Array, weight: Arrays
) -> jax.Array:
    """Rows ``[M, k_padded]`` with their exponents ``[M]`` by one weight: ``[M, N]``."""
    codes, scales = weight
    w_values, w_exponents = _dequantize_w(codes, scales)
    exponents = x_exponents[:, None] + w_exponents
    # Only a float32 result shows the bits that this saves; with many rows it would cost too much.
    apart = product.out_dtype == jnp.float32 and values.shape[0] < _MANY_ROWS
    dot = _contract_apart if apart else contract
    return _scale(dot(values, w_values), exponents).astype(product.out_dtype)


def _contract_apart(x: jax.Array, w: jax.Array) -> jax.Array:
    """``[M, C]`` by ``[N, C]`` to float32, the large elements of each row apart from the small.

    Each of the two sums nearly always fits float32's 24 bits, whatever the order of its terms;
    the sum over a whole row, such as after GELU, often does not. What is left is one rounding, the
    same as in another backend that drops nothing: a last bit would flip codes of later layers.
    """
    magnitude = jnp.abs(x)
    is_large = magnitude >= jnp.max(magnitude, axis=1, keepdims=True) * _LARGE
    zero = jnp.zeros_like(x)
    parts = jnp.concatenate([jnp.where(is_large, x, zero), jnp.where(is_large, zero, x)])
    large, small = jnp.split(contract(parts, w), 2)
    return large + small


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


def _dequantize_x(product: Product, codes: jax.Array, scales: jax.Array) -> Arrays:
    """Values ``[..., k_padded]`` relative to an exponent a row, and the exponents ``[...]``."""
    width = activations.block_width(product.block, product.k)

    def used() -> jax.Array:
        padding = [(0, 0)] * (codes.ndim - 1) + [(0, product.x_blocks * width - product.k)]
        bits = jnp.pad(lax.bitcast_convert_type(codes, jnp.uint8) & 0x7F, padding)
        return jnp.any(bits.reshape(*scales.shape, width) != 0, axis=-1)

    relative, exponents = _relative(scales, used)
    relative = jnp.repeat(relative, width, axis=-1)[..., : product.k]
    values = (formats.decode_e4m3(codes) * relative).astype(jnp.bfloat16)
    padding = [(0, 0)] * (values.ndim - 1) + [(0, product.k_padded - product.k)]
    return jnp.pad(values, padding), exponents


def _dequantize_w(codes: jax.Array, scales: jax.Array) -> Arrays:
    """Values ``[N, k_padded]`` relative to an exponent a row, and the exponents ``[N]``."""

    def used() -> jax.Array:
        blocks = codes.reshape(*scales.shape, formats.WEIGHT_BLOCK // 2)
        return jnp.any(blocks & 0x77 != 0, axis=-1)

    relative, exponents = _relative(scales, used)
    return formats.decode_packed(codes, (relative,), jnp.bfloat16), exponents


def _relative(scales: jax.Array, used: Callable[[], jax.Array]) -> Arrays:
    """UE8M0 ``[..., B]`` as float32 factors times 2**exponent, one int32 exponent a row.

    ``used`` tells the blocks that are not zeros, ``[..., B]``. The others' scales may be anything;
    that is looked at only where a row's scales lie far apart.
    """
    byte = scales.astype(jnp.int32)
    is_nan = byte == formats.SCALE_NAN
    number = jnp.where(is_nan, 0, byte)
    largest = jnp.max(number, axis=-1, keepdims=True)
    far_apart = jnp.any(largest - byte > _FAR)
    largest = lax.cond(
        far_apart,
        lambda: jnp.max(jnp.where(used(), number, 0), axis=-1, keepdims=True),
        lambda: largest,
    )
    exponent = largest - _HEADROOM
    factors = formats.power_of_two(jnp.minimum(byte - exponent, _HEADROOM))
    return jnp.where(is_nan, jnp.nan, factors), exponent[..., 0] - formats.SCALE_ONE


def _scale(sums: jax.Array, exponents: jax.Array) -> jax.Array:
    """``sums * 2**exponents`` in two halves, since the whole may exceed float32's exponents."""
    half = exponents >> 1
    return sums * formats.power_of_two(half) * formats.power_of_two(exponents - half)
