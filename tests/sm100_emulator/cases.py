"""Products with random operands, and the bits that they must give by the model."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np

import jax_w4a8
from jax_w4a8.cli import tensor_core as model
from jax_w4a8.product import Kind, Product, blocks_along
from tests.sm100_emulator.gpu import E4M3, Gpu, Operands

BF16, F16, F32 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16), np.dtype(np.float32)
DTYPES = {"bf16": BF16, "f16": F16, "f32": F32}


@dataclasses.dataclass(frozen=True)
class Case:
    """A product and how its operands are drawn."""

    kind: Kind = "dense"
    m: int = 150
    n: int = 269
    k: int = 200
    block: int = 128
    sizes: tuple[int, ...] = ()
    """Of the groups; as many as there are experts."""
    x: np.dtype = BF16
    out: np.dtype = BF16
    extreme: bool = False
    """Scales of any size, and NaN among scales and codes; x must be E4M3."""
    seed: int = 0

    @property
    def product(self) -> Product:
        return Product(self.kind, self.m, self.n, self.k, max(len(self.sizes), 1), self.block,
                       "sm100", self.x, self.out)  # fmt: skip

    def check(self, gpu: Gpu, tile: str, seed: int = 0,
              change: Callable[[Operands], Operands] | None = None,
              resident: int = 2) -> None:  # fmt: skip
        """Runs the product, of operands that ``change`` may falsify, and compares every bit."""
        operands, expected = self.draw()
        if change is not None:
            operands = change(operands)
        y = gpu.run(self.product, operands, tile, seed, resident)
        columns = y[..., : self.n]
        wrong = np.argwhere(_bits(columns) != _bits(expected))
        if len(wrong):
            at = tuple(wrong[0])
            raise AssertionError(
                f"{len(wrong)} of {expected.size} numbers differ; at {at}: {columns[at]!r} "
                f"instead of {expected[at]!r}"
            )

    @functools.cache  # noqa: B019 - a handful of cases
    def draw(self) -> tuple[Operands, np.ndarray]:
        """The operands, and the result ``[.., n]`` that the model gives."""
        rng = np.random.default_rng(self.seed)
        experts = max(len(self.sizes), 1)
        k_padded = -(-self.k // 32) * 32
        w_codes = rng.integers(0, 16, (experts, self.n, k_padded), dtype=np.uint8)
        w_codes[..., self.k :] = 0
        w_scales = self._scales(rng, (experts, self.n, k_padded // 32), 118, 132)
        rows = self.m * experts if self.kind == "masked" else self.m
        groups = self._groups(rows)
        x, x_codes, x_scales = self._activations(rng, rows, groups, k_padded)
        expected = np.zeros((rows, self.n), np.float32)
        for group in range(experts):
            used = groups == group
            expected[used] = model.accumulators(
                x_codes[used], x_scales[used], w_codes[group], w_scales[group]
            )
        lead = (experts, self.m) if self.kind == "masked" else (rows,)
        codes, scales = pack_weight(w_codes, w_scales)
        operands = Operands(
            tuple(array.reshape(*lead, -1) for array in x),
            codes if self.sizes else codes[0],
            scales if self.sizes else scales[0],
            np.array(self.sizes, np.int32) if self.sizes else None,
        )
        return operands, model.round_to(expected, self.out).reshape(*lead, self.n)

    def _scales(self, rng: np.random.Generator, shape: Any, low: int, high: int) -> np.ndarray:
        scales = rng.integers(low, high, shape, dtype=np.uint8)
        if self.extreme:
            wild = rng.random(shape)
            scales[wild < 0.3] = rng.integers(0, 255, np.count_nonzero(wild < 0.3), np.uint8)
            scales[wild > 0.998] = 255
        return scales

    def _groups(self, rows: int) -> np.ndarray:
        """The group of every row, -1 for rows of none."""
        if self.kind == "dense":
            return np.zeros(rows, int)
        sizes = np.clip(self.sizes, 0, self.m)
        if self.kind == "masked":
            used = np.arange(self.m) < sizes[:, None]
            return np.where(used, np.arange(len(sizes))[:, None], -1).ravel()
        of_row = np.repeat(np.arange(len(sizes)), sizes)[:rows]
        return np.pad(of_row, (0, rows - len(of_row)), constant_values=-1)

    def _activations(
        self, rng: np.random.Generator, rows: int, groups: np.ndarray, k_padded: int
    ) -> tuple[tuple[np.ndarray, ...], np.ndarray, np.ndarray]:
        """The operands, and their codes and scales for each 32 along K."""
        blocks = blocks_along(self.k, self.block)
        if self.x == E4M3:
            codes = rng.integers(0, 256, (rows, self.k), dtype=np.uint8)
            nan = (codes & 0x7F) == 0x7F
            codes[nan & (rng.random(codes.shape) < 0.999 if self.extreme else True)] = 0x38
            scales = self._scales(rng, (rows, blocks), 118, 132)
            codes[groups < 0], scales[groups < 0] = 0x7F, 255
            x: tuple[np.ndarray, ...] = (codes.view(E4M3), scales)
        else:
            numbers = rng.normal(size=(rows, self.k)) * 2.0 ** rng.integers(-6, 6, (rows, self.k))
            numbers[groups < 0] = np.nan
            x = (numbers.astype(self.x),)
            with jax_w4a8.use_backend("xla"):
                a = jax_w4a8.quantize_activation(jnp.asarray(x[0]), block=self.block or "row")
            codes, scales = np.asarray(a.codes).view(np.uint8), np.asarray(a.scales)
        padded = np.zeros((rows, k_padded), np.uint8)
        padded[:, : self.k] = codes
        of_block = np.arange(k_padded // 32) * 32 // (self.block or k_padded)
        return x, padded, scales.reshape(rows, blocks)[:, of_block]


def pack_weight(codes: np.ndarray, scales: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Codes ``[E, N, K]`` and scales ``[E, N, K / 32]`` in the kernels' layout.

    Stated here a second time, byte by byte, so that a fault in the packing shows.
    """
    experts, n, k = codes.shape
    n_padded, tiles, units = -(-n // 8) * 8, -(-n // 128), -(-k // 128)
    padded = np.zeros((experts, n_padded, units * 128), np.uint8)
    padded[:, :n, :k] = codes
    packed = padded[..., 0::2] | padded[..., 1::2] << 4
    swizzled = np.full((experts, tiles, units * 512), 127, np.uint8)
    row, block = np.meshgrid(np.arange(n), np.arange(k // 32), indexing="ij")
    within = block // 4 * 512 + row % 32 * 16 + row % 128 // 32 * 4 + block % 4
    swizzled[:, row // 128, within] = scales
    return packed, swizzled


def _bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(np.uint16 if array.itemsize == 2 else np.uint32)
