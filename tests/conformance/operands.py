"""Operands drawn at random, and the values that they stand for."""

import numpy as np

from jax_w4a8 import QuantizedWeight
from tests import reference


def random_weight(rng, lead, n, k, low=118, high=125):
    """Codes and scales drawn at random, codes zero past K."""
    padded = -(-k // 32) * 32
    codes = rng.integers(0, 256, (*lead, n, padded // 2), np.uint8)
    used = np.arange(padded) < k
    codes &= (used[0::2] * 0x0F + used[1::2] * 0xF0).astype(np.uint8)
    scales = rng.integers(low, high, (*lead, n, padded // 32)).astype(np.uint8)
    return QuantizedWeight(codes, scales, k=k)


def values_of(w):
    return reference.dequantize_weight(np.asarray(w.codes), np.asarray(w.scales), w.k)


def quantized_values(x, block):
    return reference.dequantize_activation(*reference.quantize_activation(x, block), block)
