"""Values that FP4 and FP8 hold exactly, so that float64 NumPy gives the one right answer."""

import numpy as np

MAGNITUDES = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6])


def kernel(k, n, seed=0):
    """float32 ``[k, n]``, each block of 32 a power of two times E2M1 values, the largest 6."""
    rng = np.random.default_rng(seed)
    values = rng.choice(MAGNITUDES, (k, n)) * rng.choice([-1, 1], (k, n))
    values[::32] = 6
    powers = 2.0 ** rng.integers(-3, 2, (-(-k // 32), n))
    return (values * np.repeat(powers, 32, axis=0)[:k]).astype(np.float32)


def inputs(*shape, seed=1):
    """float32 integers from -15 to 15, which E4M3 holds under every scale that they can get."""
    return np.random.default_rng(seed).integers(-15, 16, shape).astype(np.float32)


def bias(*shape, seed=2):
    """float32 multiples of 1/8."""
    return np.random.default_rng(seed).integers(-40, 40, shape).astype(np.float32) / 8


def product(x, w):
    """``x @ w`` in float64."""
    return np.asarray(x, np.float64) @ np.asarray(w, np.float64)
