"""Hopper kernels (``csrc/sm90``): FP4 weights become FP8 in registers, before the tensor cores.

``pack`` brings a weight into units of 64 columns by 128 of K, in the order in which the threads of
a warpgroup take them. A row's group exponents are kept relative to the row's largest: E2M1 times a
power of two within 15 binades is exact in E4M3. Where a row spreads further, its tile of 64 keeps
the UE8M0 bytes and takes a path that is exact and slower. ``docs/sm90.md`` states the layout.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jax_w4a8 import formats
from jax_w4a8.backends import custom_calls
from jax_w4a8.backends.base import Arrays, Backend
from jax_w4a8.backends.extension import Extension, load
from jax_w4a8.formats import WEIGHT_BLOCK, round_up
from jax_w4a8.product import Product

UNIT_ROWS = 64
"""Columns of the result, rows of the packed weight, in one unit."""
UNIT_K = 128
"""Elements along K in one unit."""
UNIT_GROUPS = UNIT_K // WEIGHT_BLOCK
UNIT_BYTES = UNIT_ROWS * UNIT_K // 2 + UNIT_ROWS * UNIT_GROUPS
FOLDED, KEPT = 0, 1
"""How a tile of 64 rows keeps its exponents: below the row's largest, or as UE8M0 bytes."""
TOP = 14
"""The stored exponent of a row's largest scale; 0 is the smallest that folds."""
_SUBNORMAL_MARK = 0x80
_FIRST_NORMAL = 3

_X_MULTIPLE = 16
"""The tensor copy engine takes rows of this many bytes or a multiple."""


@dataclasses.dataclass(frozen=True)
class Tile:
    """A tile's name and the thread blocks that share its K; "" and 0 leave them to choose."""

    name: str = ""
    split: int = 0


_tile = jax.make_user_context(default_value=Tile())


def use_tile(name: str = "", split: int = 0) -> Any:
    """A context manager in which products are compiled for one tile, to compare tiles.

    Args:
      name: one of those that ``python -m jax_w4a8 info`` lists (``"64x64"``); ``""`` lets
        each product choose.
      split: thread blocks that share the K of a tile: 1, 2, 4 or 8; 0 lets each product choose.
    """
    return _tile(Tile(name, split))


class Sm90Backend(Backend):
    """E2M1 expanded to E4M3 in registers, times E4M3, on compute capability 9.0 (H100, H200)."""

    name = "sm90"
    platforms = ("cuda",)
    layouts = ("sm90",)
    # Hopper sums FP8 products with about 14 bits below the largest; 2**-10.9 is the worst seen.
    accuracy = 2.0**-9

    def missing(self) -> str | None:
        return _extension().reason

    def refuses(self, product: Product) -> str | None:
        return custom_calls.too_large(product)

    def refuses_device(self, device: Any) -> str | None:
        capability = str(getattr(device, "compute_capability", "unknown"))
        if capability == "9.0":
            return None
        return (
            f"it needs a GPU of compute capability 9.0 (H100, H200); {device.device_kind} has "
            f"{capability}"
        )

    def kernels(self) -> tuple[str, ...]:
        module = _extension().module
        return () if module is None else tuple(kernel["tile"] for kernel in module.kernels())

    def quantize(self, x: jax.Array, block: int) -> Arrays:
        return custom_calls.quantize("jax_w4a8_sm90_quantize_v1", (x,), block)

    def product(
        self, product: Product, x: Arrays, sizes: jax.Array | None, weight: Arrays
    ) -> jax.Array:
        k = product.k
        if product.quantized_x and k % _X_MULTIPLE:
            # The weight is zero there, and a longer last block keeps its scale.
            padding = [(0, 0)] * (x[0].ndim - 1) + [(0, -k % _X_MULTIPLE)]
            x = (jnp.pad(x[0], padding), x[1])
            k = round_up(k, _X_MULTIPLE)
        call = jax.ffi.ffi_call(
            f"jax_w4a8_sm90_{product.kind}_v1",
            (
                jax.ShapeDtypeStruct(product.out_shape, product.out_dtype),
                jax.ShapeDtypeStruct((workspace_bytes(product),), jnp.uint8),
            ),
        )
        operands = (*x, *(() if sizes is None else (sizes,)), *weight)
        tile = _tile.value
        y, _ = call(
            *operands, n=product.n, k=k, block=product.block, tile=tile.name, split=tile.split
        )
        return y

    def pack(self, codes: jax.Array, scales: jax.Array, n: int, k: int) -> Arrays:
        tiles, units = -(-n // UNIT_ROWS), -(-k // UNIT_K)
        lead = codes.shape[:-2]
        nibbles = _pad(formats.unpack_nibbles(codes), tiles * UNIT_ROWS, units * UNIT_K)
        exponents, tops, kinds = _fold(scales, tiles, units)
        groups = exponents.reshape(*lead, tiles, UNIT_ROWS, units, UNIT_GROUPS)
        groups = jnp.swapaxes(groups, -2, -3).reshape(*lead, tiles, units, -1)
        return jnp.concatenate([_order(nibbles, tiles, units), groups], -1), tops, kinds

    def unpack(self, arrays: Arrays, n: int, k: int) -> Arrays:
        packed, tops, kinds = arrays
        *lead, tiles, units, _ = packed.shape
        nibbles = _restore(packed[..., : UNIT_ROWS * UNIT_K // 2])
        groups = packed[..., UNIT_ROWS * UNIT_K // 2 :]
        groups = jnp.swapaxes(
            groups.reshape(*lead, tiles, units, UNIT_ROWS, UNIT_GROUPS), -2, -3
        ).reshape(*lead, tiles, UNIT_ROWS, units * UNIT_GROUPS)
        folded = tops[..., None] - TOP + (groups & ~jnp.uint8(_SUBNORMAL_MARK))
        scales = jnp.where(kinds[..., None, None] == FOLDED, folded, groups)
        scales = scales.reshape(*lead, tiles * UNIT_ROWS, units * UNIT_GROUPS)
        k = round_up(k, WEIGHT_BLOCK)
        return (
            formats.pack_nibbles(nibbles[..., :n, :k]),
            scales[..., :n, : k // WEIGHT_BLOCK],
        )


BACKEND = Sm90Backend()


def workspace_bytes(product: Product) -> int:
    """Scratch for the quantised activations: ``csrc/sm90/product.cc`` lays it out."""
    if product.quantized_x:
        return 256
    rows = product.rows
    codes = round_up(rows * round_up(product.k, _X_MULTIPLE), 256)
    return 256 + codes + rows * product.x_blocks


def _fold(scales: jax.Array, tiles: int, units: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Stored exponents ``[.., rows, groups]``, the rows' largest ``[.., tiles, 64]``, and kinds."""
    lead, (n, blocks) = scales.shape[:-2], scales.shape[-2:]
    top = jnp.max(scales, axis=-1, keepdims=True, initial=0)
    # Padding along K is as the row's largest; rows of padding are ones.
    top = _pad(top, tiles * UNIT_ROWS, 1, formats.SCALE_ONE)
    inside = (jnp.arange(tiles * UNIT_ROWS) < n)[:, None]
    inside = inside & (jnp.arange(units * UNIT_GROUPS) < blocks)
    byte = jnp.where(inside, _pad(scales, tiles * UNIT_ROWS, units * UNIT_GROUPS), top)
    below = (top - byte).reshape(*lead, tiles, UNIT_ROWS, units * UNIT_GROUPS)
    tile_byte = byte.reshape(below.shape)
    folds = (jnp.max(below, axis=(-1, -2)) <= TOP) & (
        jnp.max(tile_byte, axis=(-1, -2)) < formats.SCALE_NAN
    )
    index = TOP - below
    index = jnp.where(below > TOP - _FIRST_NORMAL, index | _SUBNORMAL_MARK, index)
    stored = jnp.where(folds[..., None, None], index, tile_byte)
    kinds = jnp.where(folds, FOLDED, KEPT).astype(jnp.uint8)
    return stored.reshape(byte.shape), top.reshape(*lead, tiles, UNIT_ROWS), kinds


# Axes of a unit's codes. A row is 16 * warp + 2 * quad + row, an element along K is
# 32 * (2 * half + step) + 16 * run + 4 * column + element; a thread is (warp, quad, column).
_PLAIN = ("tile", "warp", "quad", "row", "unit", "half", "step", "run", "column", "element")
_SIZES = {
    "warp": 4, "quad": 8, "row": 2, "half": 2, "step": 2, "run": 2, "column": 4, "element": 4,
}  # fmt: skip
_THREADS = ("tile", "unit", "half", "warp", "quad", "column", "step", "row")


def _order(nibbles: jax.Array, tiles: int, units: int) -> jax.Array:
    """Codes ``[.., tiles * 64, units * 128]`` to bytes ``[.., tiles, units, 4096]``.

    The eight codes that a thread takes of a row and a step of 32 make a word: their magnitudes are
    its nibbles in order; the sign of a code of the first run is above the odd nibbles, of the
    second above the even ones, where the bytes that they become have theirs.
    """
    lead = nibbles.shape[:-2]
    sizes = {"tile": tiles, "unit": units, **_SIZES}
    codes = nibbles.reshape(*lead, *(sizes[axis] for axis in _PLAIN))
    magnitudes = _transpose(codes & 7, _PLAIN, (*_THREADS, "run", "element"))
    signs = _transpose(codes & 8, _PLAIN, (*_THREADS, "element", "run"))[..., ::-1]
    words = magnitudes.reshape(*magnitudes.shape[:-2], 8) | signs.reshape(*signs.shape[:-2], 8)
    return formats.pack_nibbles(words).reshape(*lead, tiles, units, UNIT_ROWS * UNIT_K // 2)


def _restore(packed: jax.Array) -> jax.Array:
    """The codes that ``_order`` ordered."""
    *lead, tiles, units, _ = packed.shape
    sizes = {"tile": tiles, "unit": units, **_SIZES}
    words = formats.unpack_nibbles(packed)
    words = words.reshape(*lead, *(sizes[axis] for axis in _THREADS), 8)
    magnitudes = (words & 7).reshape(*words.shape[:-1], 2, 4)
    signs = (words & 8).reshape(*words.shape[:-1], 4, 2)[..., ::-1]
    codes = _transpose(magnitudes, (*_THREADS, "run", "element"), _PLAIN) | _transpose(
        signs, (*_THREADS, "element", "run"), _PLAIN
    )
    return codes.reshape(*lead, tiles * UNIT_ROWS, units * UNIT_K)


def _transpose(array: jax.Array, of: tuple[str, ...], to: tuple[str, ...]) -> jax.Array:
    lead = array.ndim - len(of)
    return jnp.transpose(array, (*range(lead), *(lead + of.index(axis) for axis in to)))


def _pad(array: jax.Array, rows: int, columns: int, value: int = 0) -> jax.Array:
    padding = [(0, 0)] * (array.ndim - 2)
    padding += [(0, rows - array.shape[-2]), (0, columns - array.shape[-1])]
    return jnp.pad(array, padding, constant_values=value)


def _extension() -> Extension:
    return load(
        "_sm90", "CUDA", "build it with `make cuda`, or pip install with JAX_W4A8_CUDA=1 and nvcc"
    )
