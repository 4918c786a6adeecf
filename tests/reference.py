"""What the formats and products mean, in NumPy and float64, written from their definitions.

E2M1 and UE8M0: OCP Microscaling Formats (MX) v1.0, sections 5.3.3 and 5.4.1. E4M3: OCP 8-bit
Floating Point v1.0. Nothing here uses the package.
"""

import numpy as np

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])


def _e4m3_values() -> np.ndarray:
    code = np.arange(256)
    exponent, mantissa = code >> 3 & 15, code & 7
    normal = (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    values = np.where(exponent == 0, mantissa / 8 * 2.0**-6, normal)
    values[(code & 0x7F) == 0x7F] = np.nan
    return np.where(code & 0x80, -values, values)


E4M3 = _e4m3_values()
UE8M0 = np.array([2.0 ** (byte - 127) for byte in range(255)] + [np.nan])

# A product is rounded once to its dtype, and summed in float32.
ROUNDING = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}
SMALLEST = {"float32": 2.0**-149, "bfloat16": 2.0**-133, "float16": 2.0**-24}
LARGEST = {"float32": (2 - 2.0**-23) * 2.0**127, "bfloat16": 1.9921875 * 2.0**127, "float16": 65504}
ACCUMULATION = 2.0**-20


def nearest_even(values: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """Index of the nearest of ``grid`` (ascending, from 0) to each of ``values``; a tie is even.

    What lies past the last saturates to it.
    """
    values = np.abs(np.asarray(values, np.float64))
    above = np.clip(np.searchsorted(grid, values), 1, len(grid) - 1)
    below = above - 1
    to_above, to_below = grid[above] - values, values - grid[below]
    even = np.where(above % 2 == 0, above, below)
    nearer = np.where(to_above < to_below, above, below)
    return np.where(to_above == to_below, even, nearer)


def encode_e2m1(values: np.ndarray) -> np.ndarray:
    """Codes 0..15 of finite values."""
    values = np.asarray(values, np.float64)
    return (nearest_even(values, E2M1[:8]) | np.signbit(values) * 8).astype(np.uint8)


def encode_e4m3(values: np.ndarray) -> np.ndarray:
    """Codes 0..255, saturating at 448; NaN is 0x7F."""
    values = np.asarray(values, np.float64)
    codes = nearest_even(np.nan_to_num(values), E4M3[:0x7F]) | np.signbit(values) * 0x80
    return np.where(np.isnan(values), 0x7F, codes).astype(np.uint8)


def flush(values: np.ndarray) -> np.ndarray:
    """float64 of float32, bfloat16 or float16 values, float32's subnormals as signed zeros."""
    wide = np.asarray(values).astype(np.float64)
    return np.where(np.abs(wide) < 2.0**-126, np.copysign(0, wide), wide)


def scale_ceil(amax: np.ndarray, limit: float) -> np.ndarray:
    """Bytes of the least power of two, 2**-127 or more, that ``amax`` is within ``limit`` times."""
    amax = np.asarray(amax, np.float64)
    mantissa, exponent = np.frexp(amax / limit)
    ceiling = exponent - (mantissa == 0.5)
    return np.where(amax == 0, 127, np.clip(ceiling + 127, 0, 254)).astype(np.uint8)


def scale_floor(amax: np.ndarray) -> np.ndarray:
    """Bytes of 2**(floor(log2(amax)) - 2), the MX specification's rule for E2M1 (section 6.3)."""
    amax = np.asarray(amax, np.float64)
    exponent = np.frexp(amax)[1] - 1
    return np.where(amax == 0, 127, np.clip(exponent - 2 + 127, 0, 254)).astype(np.uint8)


def blocks(values: np.ndarray, width: int) -> np.ndarray:
    """``[..., K]`` padded with zeros and split to ``[..., blocks, width]``."""
    k = values.shape[-1]
    padding = [(0, 0)] * (values.ndim - 1) + [(0, -k % width)]
    padded = np.pad(values, padding)
    return padded.reshape(*values.shape[:-1], -1, width)


def quantize_activation(x: np.ndarray, block: int | str) -> tuple[np.ndarray, np.ndarray]:
    """Codes ``[..., K]`` and scales ``[..., blocks]``, uint8, of float activations."""
    x = flush(x)
    k = x.shape[-1]
    split = blocks(x, k if block == "row" else block)
    finite = np.isfinite(split).all(-1)
    amax = np.where(finite, np.abs(split).max(-1), 0)
    scales = scale_ceil(amax, 448)
    codes = encode_e4m3(np.where(finite[..., None], split, 0) / UE8M0[scales][..., None])
    codes = np.where(finite[..., None], codes, 0x7F).reshape(*x.shape[:-1], -1)[..., :k]
    return codes.astype(np.uint8), np.where(finite, scales, 255).astype(np.uint8)


def dequantize_activation(codes: np.ndarray, scales: np.ndarray, block: int | str) -> np.ndarray:
    """float64 ``[..., K]``."""
    k = codes.shape[-1]
    width = k if block == "row" else block
    return E4M3[codes] * np.repeat(UE8M0[scales], width, axis=-1)[..., :k]


def dequantize_weight(codes: np.ndarray, scales: np.ndarray, k: int) -> np.ndarray:
    """float64 ``[..., K, N]`` of plain codes ``[..., N, K / 2]`` and their scales."""
    nibbles = np.stack([codes & 15, codes >> 4], axis=-1).reshape(*codes.shape[:-1], -1)
    values = E2M1[nibbles] * np.repeat(UE8M0[scales], 32, axis=-1)
    return np.swapaxes(values, -1, -2)[..., :k, :]


def product(x: np.ndarray, w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``x @ w`` in float64, and the sum of its terms' magnitudes."""
    return x @ w, np.abs(x) @ np.abs(w)


def assert_within_bound(y, exact, terms, accuracy: float = ACCUMULATION) -> None:
    """The bound of a result ``y`` of any dtype; NaN and infinities where they belong."""
    name = np.asarray(y).dtype.name
    values = np.asarray(y).astype(np.float64)
    np.testing.assert_array_equal(np.isnan(values), np.isnan(exact))
    error = accuracy * terms + ROUNDING[name] * np.abs(exact) + SMALLEST[name]
    overflows = np.abs(exact) + error > LARGEST[name]
    with np.errstate(invalid="ignore"):
        wrong = (np.abs(values - exact) > error) & ~np.isnan(exact) & ~overflows
        wrong |= overflows & (np.abs(values) < LARGEST[name] * (1 - 2 * ROUNDING[name]) - error)
    assert not wrong.any(), (
        f"{wrong.sum()} of {wrong.size} results are past the bound; the first at "
        f"{np.argwhere(wrong)[0]}: {values[wrong][0]}, exact {exact[wrong][0]}"
    )
