"""The frozen description of one W4A8 product, passed whole from the shape rule to the backend."""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np

from jax_w4a8.formats import WEIGHT_BLOCK, round_up

Kind = Literal["dense", "grouped", "masked"]


@dataclasses.dataclass(frozen=True)
class Product:
    """``y = x @ w`` with FP8 activations and FP4 weights.

    Attributes:
      kind: ``"dense"`` (x ``[M, K]``, w ``[K, N]``), ``"grouped"`` (x ``[M, K]`` sorted by group,
        w ``[E, K, N]``) or ``"masked"`` (x ``[E, Mmax, K]``, w ``[E, K, N]``).
      m: rows of x; for a masked product the rows of each group, Mmax.
      n: columns of the result.
      k: length of the contraction, before padding.
      groups: E, or 1 for a dense product.
      block: activation elements along K that share one scale: 32, 128, or 0 for the whole row.
      layout: layout of the weight's arrays.
      x_dtype: dtype of the activations as handed in; ``float8_e4m3fn`` when already quantised.
      out_dtype: dtype of the result.
    """

    kind: Kind
    m: int
    n: int
    k: int
    groups: int
    block: int
    layout: str
    x_dtype: np.dtype
    out_dtype: np.dtype

    @property
    def rows(self) -> int:
        """Rows of x, of all groups."""
        return self.m * self.groups if self.kind == "masked" else self.m

    @property
    def k_padded(self) -> int:
        """K rounded up to whole weight blocks."""
        return round_up(self.k, WEIGHT_BLOCK)

    @property
    def x_blocks(self) -> int:
        """Activation scales of one row."""
        return blocks_along(self.k, self.block)

    @property
    def quantized_x(self) -> bool:
        """Whether the activations come as codes and scales."""
        return self.x_dtype.name == "float8_e4m3fn"

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Shape of the result: ``[M, N]``, or ``[E, Mmax, N]`` for a masked product."""
        rows = (self.groups, self.m) if self.kind == "masked" else (self.m,)
        return (*rows, self.n)

    def __str__(self) -> str:
        block = self.block or "row"
        groups = f", groups={self.groups}" if self.kind != "dense" else ""
        return (
            f"{self.kind} product M={self.m}, N={self.n}, K={self.k}{groups}, block={block}, "
            f"{self.x_dtype} x {self.layout} FP4 -> {self.out_dtype}"
        )


def blocks_along(k: int, block: int) -> int:
    """Number of scales that a row of ``k`` activations has with blocks of ``block`` (0: one)."""
    return -(-k // block) if block else 1
