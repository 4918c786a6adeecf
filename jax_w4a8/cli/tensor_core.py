"""What Blackwell's tensor core computes, to the last bit, by the published measurements of it.

``selftest`` holds a GPU against it, and the tests an emulator that shares nothing with it. Numbers
are float64 here, in which every product of a code of activations, a code of weights and two scales
is exact, and so is every sum in units of the window.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

BLOCK = 32
WINDOW_BITS = 25
"""Fraction bits that survive below the largest term's exponent in a block's sum."""

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])
E2M1_VALUES = np.concatenate([E2M1, -E2M1])
E4M3_VALUES = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float64)
E2M1_LEAST, E4M3_LEAST, F32_LEAST = 0, -6, -126
"""Exponents of the smallest normal numbers; subnormal ones have the same."""
NAN_BITS = {"bfloat16": 0x7FFF, "float16": 0x7FFF, "float32": 0x7FFFFFFF}


def exponents(values: np.ndarray, least: int) -> np.ndarray:
    """Of numbers of a format whose smallest normal number is ``2**least``."""
    return np.maximum(np.frexp(values)[1] - 1, least)


def truncate_to_float32(values: np.ndarray) -> np.ndarray:
    """float64 to float32 towards zero; past the range of float32 lies infinity."""
    with np.errstate(over="ignore"):
        rounded = values.astype(np.float32)
    larger = np.abs(rounded.astype(np.float64)) > np.abs(values)
    truncated = np.where(larger, np.nextafter(rounded, np.float32(0)), rounded)
    beyond = np.abs(values) >= 2.0**128
    return np.where(beyond, np.copysign(np.float32(np.inf), values), truncated).astype(np.float32)


def accumulate_block(a: np.ndarray, b: np.ndarray, a_exponent: np.ndarray, b_exponent: np.ndarray,
                     accumulator: np.ndarray) -> np.ndarray:  # fmt: skip
    """``accumulator + a @ b.T`` over one block, as the tensor core rounds it.

    Args:
      a, b: scaled values, float64 ``[M, 32]`` and ``[N, 32]``.
      a_exponent, b_exponent: the exponents of the codes and scales that they are products of.
      accumulator: float32 ``[M, N]``.
    """
    terms = a[:, None, :] * b[None, :, :]
    exponent = a_exponent[:, None, :] + b_exponent[None, :, :]
    carried = accumulator.astype(np.float64)
    nothing = -(10**4)
    largest = np.where(terms != 0, exponent, nothing).max(axis=2)
    of_carried = exponents(np.where(np.isfinite(carried), carried, 0), F32_LEAST)
    largest = np.maximum(largest, np.where(carried != 0, of_carried, nothing))
    unit = np.ldexp(1.0, np.where(largest == nothing, 0, largest) - WINDOW_BITS)
    with np.errstate(invalid="ignore"):
        total = np.trunc(terms / unit[..., None]).sum(axis=2) + np.trunc(carried / unit)
        result = truncate_to_float32(total * unit)
    return np.where(np.isinf(accumulator), accumulator, result + np.float32(0))


def accumulators(x_codes: np.ndarray, x_scales: np.ndarray, w_codes: np.ndarray,
                 w_scales: np.ndarray) -> np.ndarray:  # fmt: skip
    """The float32 accumulators ``[M, N]`` after the last block along K.

    Args:
      x_codes: E4M3 as uint8 ``[M, K]``; K is a multiple of 32.
      x_scales: UE8M0 ``[M, K / 32]``.
      w_codes: E2M1 as uint8 below 16 ``[N, K]``.
      w_scales: UE8M0 ``[N, K / 32]``.
    """
    rows, columns = len(x_codes), len(w_codes)
    result = np.zeros((rows, columns), np.float32)
    x_nan = (x_codes & 0x7F) == 0x7F
    for block in range(x_codes.shape[1] // BLOCK):
        along = slice(block * BLOCK, (block + 1) * BLOCK)
        x_scale = x_scales[:, block].astype(int) - 127
        w_scale = w_scales[:, block].astype(int) - 127
        x = np.where(x_nan[:, along], 0, E4M3_VALUES[x_codes[:, along]])
        w = E2M1_VALUES[w_codes[:, along]]
        x_exponent = exponents(x, E4M3_LEAST) + x_scale[:, None]
        w_exponent = exponents(w, E2M1_LEAST) + w_scale[:, None]
        x, w = np.ldexp(x, x_scale[:, None]), np.ldexp(w, w_scale[:, None])
        for row in range(0, rows, 32):
            part = slice(row, row + 32)
            result[part] = accumulate_block(x[part], w, x_exponent[part], w_exponent, result[part])
        nan = (x_nan[:, along].any(axis=1) | (x_scales[:, block] == 255))[:, None]
        nan = nan | (w_scales[:, block] == 255)[None, :]
        result[nan] = np.nan
    return result


def round_to(values: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The epilogue: float32 to the result's type, to nearest even; NaNs are the canonical one."""
    with np.errstate(over="ignore"):
        rounded = values.astype(dtype)
    bits = rounded.view(np.uint16 if rounded.itemsize == 2 else np.uint32)
    bits[np.isnan(values)] = NAN_BITS[np.dtype(dtype).name]
    return rounded
