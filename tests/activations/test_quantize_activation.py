"""Codes and scales of activations: the reference's bits, in eager and jit, on every backend."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_w4a8
from jax_w4a8 import activations
from tests import reference

BLOCKS = [32, 128, "row"]
DTYPES = ["float32", "bfloat16", "float16"]


def edges(dtype):
    """Rows of 300: every power of two and its neighbours, zeros, subnormals, random numbers."""
    limits = jnp.finfo(dtype)
    bits = 32 if dtype == "float32" else 16
    mantissa, count = limits.nmant, 1 << limits.nexp
    words = np.arange(count - 1, dtype=np.uint32) << mantissa
    words = np.concatenate(
        [words, words + 1, np.maximum(words, 1) - 1, words + (1 << mantissa) - 1]
    )
    words = np.concatenate([words, words | 1 << (bits - 1)])
    values = words.astype(f"uint{bits}").view(jnp.dtype(dtype)).astype(np.float32)
    rng = np.random.default_rng(0)
    # Each number leads a block of zeros, and each leads one of smaller numbers.
    alone = np.zeros((len(values), 300), np.float32)
    alone[:, 0] = values
    beside = rng.uniform(-1, 1, (len(values), 300)).astype(np.float32) * np.abs(values)[:, None]
    beside[:, 7] = values
    wide = rng.normal(size=(200, 300)) * 2.0 ** rng.integers(-24, 14, (200, 300))
    rows = np.concatenate([alone, beside, wide.astype(np.float32)])
    return rows.astype(jnp.dtype(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block", BLOCKS)
def test_bits_are_the_reference_s(backend, dtype, block):
    x = edges(dtype)
    codes, scales = reference.quantize_activation(x, block)
    a = jax_w4a8.quantize_activation(jnp.asarray(x), block=block)
    np.testing.assert_array_equal(np.asarray(a.scales), scales)
    np.testing.assert_array_equal(np.asarray(a.codes).view(np.uint8), codes)
    inside = jax.jit(lambda x: jax_w4a8.quantize_activation(x, block=block))(x)
    np.testing.assert_array_equal(np.asarray(inside.scales), scales)
    np.testing.assert_array_equal(np.asarray(inside.codes).view(np.uint8), codes)


def test_eager_arithmetic_is_that_of_jit():
    x = jnp.asarray(edges("float32"))
    with jax.disable_jit():
        codes, scales = activations.quantize_blocks(x, 128)
    expected = reference.quantize_activation(np.asarray(x), 128)
    np.testing.assert_array_equal(np.asarray(codes).view(np.uint8), expected[0])
    np.testing.assert_array_equal(np.asarray(scales), expected[1])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_block_that_is_not_finite_becomes_nan(backend, bad):
    x = np.ones((3, 256), np.float32)
    x[1, 130] = bad
    a = jax_w4a8.quantize_activation(x)
    np.testing.assert_array_equal(np.asarray(a.scales), [[119, 119], [119, 255], [119, 119]])
    codes = np.asarray(a.codes).view(np.uint8)
    assert (codes[1, 128:] == 0x7F).all()
    values = np.asarray(a.dequantize())
    assert np.isnan(values[1, 128:]).all()
    np.testing.assert_array_equal(np.delete(values, 1, axis=0), 1)


def test_zeros_have_a_finite_scale_and_keep_their_signs(backend):
    x = np.zeros((2, 64), np.float32)
    x[1] = -0.0
    a = jax_w4a8.quantize_activation(x, block=32)
    np.testing.assert_array_equal(np.asarray(a.scales), 127)
    np.testing.assert_array_equal(np.asarray(a.codes).view(np.uint8)[:, 0], [0x00, 0x80])
    np.testing.assert_array_equal(np.asarray(a.dequantize()), 0)


@pytest.mark.parametrize("k", [1, 31, 33, 100, 129, 300])
@pytest.mark.parametrize("block", BLOCKS)
def test_a_last_block_may_be_shorter(backend, k, block):
    x = np.random.default_rng(k).normal(size=(4, k)).astype(np.float32)
    codes, scales = reference.quantize_activation(x, block)
    a = jax_w4a8.quantize_activation(x, block=block)
    np.testing.assert_array_equal(np.asarray(a.codes).view(np.uint8), codes)
    np.testing.assert_array_equal(np.asarray(a.scales), scales)
    exact = reference.dequantize_activation(codes, scales, block)
    np.testing.assert_array_equal(np.asarray(a.dequantize(), np.float64), exact)
