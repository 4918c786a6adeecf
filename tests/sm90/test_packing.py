"""The SM90 layout of a weight: back again, and what the kernels read out of it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import jax_w4a8
from jax_w4a8.backends import sm90
from jax_w4a8.weights import QuantizedWeight

SHAPES = [(1, 1), (1, 32), (63, 31), (64, 128), (65, 129), (130, 96), (200, 416), (96, 2880)]
MAGNITUDES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
LARGEST = 2**6  # what a row's largest exponent means in E4M3


def weight(n: int, k: int, spread: int, lead: tuple[int, ...] = ()) -> QuantizedWeight:
    """Random codes, zero past k; each row's scales reach over exactly ``spread`` binades."""
    rng = np.random.default_rng(n * 10007 + k)
    groups = -(-k // 32)
    codes = rng.integers(0, 16, (*lead, n, groups * 32), dtype=np.uint8)
    codes[..., k:] = 0
    scales = rng.integers(100, 101 + spread, (*lead, n, groups), dtype=np.uint8)
    scales[..., 0] = 100
    scales[..., -1] = 100 + spread
    return QuantizedWeight(codes[..., 0::2] | codes[..., 1::2] << 4, scales, k=k)


def same(a: QuantizedWeight, b: QuantizedWeight) -> None:
    np.testing.assert_array_equal(a.codes, b.codes)
    np.testing.assert_array_equal(a.scales, b.scales)
    assert (a.layout, a.k, a.n) == (b.layout, b.k, b.n)


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_unpack_gives_the_weight_back(n: int, k: int) -> None:
    w = weight(n, k, 9)
    packed = jax_w4a8.prepack(w, layout="sm90")
    assert packed.layout == "sm90"
    assert packed.shape == w.shape == (k, n)
    same(jax_w4a8.unpack(packed), w)


@pytest.mark.parametrize("spread", [0, 10, 14, 15, 20, 40])
def test_rows_within_15_binades_fold_and_all_come_back(spread: int) -> None:
    w = weight(128, 256, spread)
    packed = jax_w4a8.prepack(w, layout="sm90")
    (kinds,) = packed.extras
    kept = sm90.FOLDED if spread <= 14 else sm90.KEPT
    np.testing.assert_array_equal(kinds, np.full(2, kept))
    same(jax_w4a8.unpack(packed), w)


def test_only_the_tile_of_a_wide_row_or_a_nan_is_kept() -> None:
    w = weight(256, 128, 5)
    scales = np.array(w.scales)
    scales[70, 1] = 100 + 15  # against 100 in the same row
    scales[200, 2] = 255  # NaN, as a traced weight may hold it
    arrays = sm90.BACKEND.pack(jnp.asarray(w.codes), jnp.asarray(scales), 256, 128)
    kinds = [sm90.FOLDED, sm90.KEPT, sm90.FOLDED, sm90.KEPT]
    np.testing.assert_array_equal(arrays[2], kinds)
    back = sm90.BACKEND.unpack(arrays, 256, 128)
    np.testing.assert_array_equal(back[0], w.codes)
    np.testing.assert_array_equal(back[1], scales)


def test_all_rows_of_normal_weights_fold() -> None:
    w = jax_w4a8.quantize(jax.random.normal(jax.random.key(0), (1024, 256)))
    (kinds,) = jax_w4a8.prepack(w, layout="sm90").extras
    np.testing.assert_array_equal(kinds, np.zeros(4))


def test_experts_are_packed_one_by_one_under_jit() -> None:
    w = weight(130, 96, 20, (3,))
    packed = jax.jit(lambda w: jax_w4a8.prepack(w, layout="sm90"))(w)
    assert packed.lead == (3,)
    for e in range(3):
        one = jax_w4a8.prepack(QuantizedWeight(w.codes[e], w.scales[e], k=96), layout="sm90")
        for all_, alone in zip((packed.codes, packed.scales, *packed.extras),
                               (one.codes, one.scales, *one.extras), strict=True):  # fmt: skip
            np.testing.assert_array_equal(all_[e], alone)
    same(jax_w4a8.unpack(packed), w)


def e4m3(table: np.ndarray) -> np.ndarray:
    return table.astype(np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)


def tables(index: int) -> np.ndarray:
    """The bytes of ``any_table`` in ``csrc/sm90/expand.cuh``."""
    mask = 0xFFFFFFFF
    low = (index * 0x08080800 + 0xFBF7F000) & mask
    high = (index * 0x08080808 + 0x0C080400) & mask
    if index < 3:
        low = 0x03020100 << index & mask
    if index == 0:
        high |= 0x0204
    return np.frombuffer(np.array([low, high], "<u4").tobytes(), np.uint8)


@pytest.mark.parametrize("index", range(15))
def test_tables_hold_the_magnitudes_exactly(index: int) -> None:
    np.testing.assert_array_equal(e4m3(tables(index)), MAGNITUDES * 2.0 ** (index - 8))


def read(packed: QuantizedWeight) -> np.ndarray:
    """The weight ``[N64, K128]`` that the threads of the kernels see, word by word."""
    units, tops = np.asarray(packed.codes), np.asarray(packed.scales)
    (kinds,) = map(np.asarray, packed.extras)
    assert not kinds.any()
    row_tiles, k_units = units.shape[:2]
    values = np.zeros((row_tiles * 64, k_units * 128))
    for tile, unit, thread in np.ndindex(row_tiles, k_units, 128):
        data = units[tile, unit]
        warp, g, c = thread // 32, thread % 32 // 4, thread % 4
        for step in range(4):
            begin = (step // 2 * 128 + thread) * 16 + step % 2 * 8
            words = data[begin : begin + 8].view("<u4")
            for r in range(2):
                row = 16 * warp + 2 * g + r
                exponent = data[4096 + row * 4 + step]
                marked, index = exponent >> 7, exponent & 0x7F
                assert marked == (index < 3)
                scale = 2.0 ** (int(tops[tile, row]) - 127) / LARGEST
                word = int(words[r])
                for run in range(2):
                    signs = word if run == 0 else word << 4
                    selectors = [word >> 16 * run + 4 * i & 7 for i in range(4)]
                    byte = tables(int(index))[selectors]
                    byte = byte | [(signs >> 8 * i) & 0x80 for i in range(4)]
                    k = unit * 128 + 32 * step + 16 * run + 4 * c
                    values[tile * 64 + row, k : k + 4] = e4m3(byte) * scale
    return values


@pytest.mark.parametrize("spread", [0, 14])
def test_the_kernels_read_the_weight(spread: int) -> None:
    w = weight(70, 200, spread)
    seen = read(jax_w4a8.prepack(w, layout="sm90"))
    dense = np.asarray(w.dequantize(jnp.float32), np.float64).T
    np.testing.assert_array_equal(seen[:70, :200], dense)
    assert not seen[70:].any()
    assert not seen[:, 200:].any()
