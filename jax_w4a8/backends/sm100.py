"""CUTLASS kernels for Blackwell's block-scaled tensor cores (``csrc/sm100``).

The tensor core multiplies E4M3 by E2M1 itself and applies a UE8M0 scale for every 32 along K, so
nothing is dequantised. Activations are quantised on the device, inside the product's custom call.
``docs/sm100.md`` states the layouts.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jax_w4a8 import formats
from jax_w4a8.backends import custom_calls
from jax_w4a8.backends.base import Arrays, Backend
from jax_w4a8.backends.extension import Extension, load
from jax_w4a8.formats import WEIGHT_BLOCK, round_up
from jax_w4a8.product import Product

K_MULTIPLE = 128
"""K of a packed weight is padded with zeros to a multiple of this."""
N_MULTIPLE = 8
"""N of a packed weight is padded with zeros to a multiple of this."""
SCALE_ROWS = 128
"""Rows of one tile of swizzled scales."""
SCALE_COLUMNS = K_MULTIPLE // WEIGHT_BLOCK
"""Scales along K in one tile of swizzled scales."""
SCALE_TILE = SCALE_ROWS * SCALE_COLUMNS
"""Bytes of one tile of swizzled scales."""

_tile = jax.make_user_context(default_value="")


def use_tile(name: str) -> Any:
    """A context manager in which products are compiled for the tile ``name``, to compare tiles.

    Args:
      name: one of those that ``python -m jax_w4a8 info`` lists, of the product's kind
        (``"dense_128x256"``); ``""`` lets each product choose.
    """
    return _tile(name)


class Sm100Backend(Backend):
    """E4M3 by E2M1 on tensor cores of compute capability 10.x (B200, B300)."""

    name = "sm100"
    platforms = ("cuda",)
    layouts = ("sm100",)
    # Each MMA sums 32 products and the accumulator in a window of 25 fraction bits and truncates:
    # at most 33 * 2**-25 of the largest, 512 times for K = 16384.
    accuracy = 2.0**-11

    def missing(self) -> str | None:
        return _extension().reason

    def refuses(self, product: Product) -> str | None:
        return custom_calls.too_large(product)

    def refuses_device(self, device: Any) -> str | None:
        capability = str(getattr(device, "compute_capability", "unknown"))
        if capability.split(".")[0] == "10":
            return None
        return (
            f"it needs a GPU of compute capability 10.x (B200, B300); {device.device_kind} has "
            f"{capability}"
        )

    def kernels(self) -> tuple[str, ...]:
        module = _extension().module
        if module is None:
            return ()
        return tuple(f"{kernel['tile']} -> {kernel['out']}" for kernel in module.kernels())

    def targets(self) -> tuple[str, ...]:
        return (*super().targets(), "jax_w4a8_sm100_silu_mul_quantize_v1")

    def quantize(self, x: jax.Array, block: int) -> Arrays:
        return custom_calls.quantize("jax_w4a8_sm100_quantize_v1", (x,), block)

    def silu_mul_quantize(self, gate: jax.Array, up: jax.Array, block: int) -> Arrays:
        """Quantises ``silu(gate) * up``, computed in float32 and rounded to their dtype.

        Args:
          gate, up: float32, bfloat16 or float16 ``[..., K]``.
          block: 32, 128, or 0 for one scale a row.

        Returns:
          Codes ``[..., K]`` and scales ``[..., blocks]``, as ``quantize``.
        """
        return custom_calls.quantize("jax_w4a8_sm100_silu_mul_quantize_v1", (gate, up), block)

    def product(
        self, product: Product, x: Arrays, sizes: jax.Array | None, weight: Arrays
    ) -> jax.Array:
        columns = round_up(product.n, N_MULTIPLE)
        call = jax.ffi.ffi_call(
            f"jax_w4a8_sm100_{product.kind}_v1",
            (
                jax.ShapeDtypeStruct((*product.out_shape[:-1], columns), product.out_dtype),
                jax.ShapeDtypeStruct((workspace_bytes(product),), jnp.uint8),
            ),
        )
        operands = (*x, *(() if sizes is None else (sizes,)), *weight)
        y, _ = call(*operands, n=product.n, k=product.k, block=product.block, tile=_tile.value)
        return y[..., : product.n]

    def pack(self, codes: jax.Array, scales: jax.Array, n: int, k: int) -> Arrays:
        codes = _pad(codes, round_up(n, N_MULTIPLE), round_up(k, K_MULTIPLE) // 2, 0)
        return codes, swizzle_scales(scales)

    def unpack(self, arrays: Arrays, n: int, k: int) -> Arrays:
        codes, scales = arrays
        k = round_up(k, WEIGHT_BLOCK)
        plain = unswizzle_scales(scales)[..., :n, : k // WEIGHT_BLOCK]
        return codes[..., :n, : k // 2], plain


BACKEND = Sm100Backend()


def swizzle_scales(scales: jax.Array) -> jax.Array:
    """Scales ``[..., R, B]`` in tiles of 128 rows by 4 scales: ``[..., R / 128, 512 * B / 4]``.

    R and B are padded to whole tiles with scales of 1. In a tile, rows r, r + 32, r + 64 and r + 96
    share 16 consecutive bytes, four each.
    """
    *lead, rows, blocks = scales.shape
    tiles, units = -(-rows // SCALE_ROWS), -(-blocks // SCALE_COLUMNS)
    padded = _pad(scales, tiles * SCALE_ROWS, units * SCALE_COLUMNS, formats.SCALE_ONE)
    split = padded.reshape(*lead, tiles, 4, SCALE_ROWS // 4, units, SCALE_COLUMNS)
    return jnp.moveaxis(split, (-2, -3, -4), (-4, -3, -2)).reshape(*lead, tiles, units * SCALE_TILE)


def unswizzle_scales(swizzled: jax.Array) -> jax.Array:
    """The scales, with their padding, that ``swizzle_scales`` made ``swizzled`` of."""
    *lead, tiles, width = swizzled.shape
    units = width // SCALE_TILE
    split = swizzled.reshape(*lead, tiles, units, SCALE_ROWS // 4, 4, SCALE_COLUMNS)
    plain = jnp.moveaxis(split, (-4, -3, -2), (-2, -3, -4))
    return plain.reshape(*lead, tiles * SCALE_ROWS, units * SCALE_COLUMNS)


def workspace_bytes(product: Product) -> int:
    """Scratch that the custom call of ``product`` needs: ``csrc/sm100/workspace.h`` lays it out."""
    dense, masked = product.kind == "dense", product.kind == "masked"
    rows = product.rows
    k = round_up(product.k, K_MULTIPLE)
    if masked:
        tiles = product.groups * -(-product.m // SCALE_ROWS)
    elif dense:
        tiles = -(-product.m // SCALE_ROWS)
    else:
        # Every group that is not empty ends in a tile that it may not fill.
        tiles = product.m // SCALE_ROWS + min(product.m, product.groups)
    parts = [rows * k, tiles * (k // K_MULTIPLE) * SCALE_TILE]
    if not dense:
        kernel = (256 << 10) + (product.groups + 16) * 256
        parts += [rows * 4, product.groups * 12, kernel]
    return sum(round_up(part, 256) for part in parts) + 256


def _pad(array: jax.Array, rows: int, columns: int, value: int) -> jax.Array:
    padding = [(0, 0)] * (array.ndim - 2)
    padding += [(0, rows - array.shape[-2]), (0, columns - array.shape[-1])]
    return jnp.pad(array, padding, constant_values=value)


def _extension() -> Extension:
    return load(
        "_sm100", "CUDA", "build it with `make cuda`, or pip install with JAX_W4A8_CUDA=1 and nvcc"
    )
