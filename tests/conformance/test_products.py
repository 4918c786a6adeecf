"""Every backend that serves on a CPU against float64, within the contract's bound."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_w4a8
from jax_w4a8 import QuantizedActivation, QuantizedWeight
from tests import reference
from tests.conformance.operands import quantized_values, random_weight, values_of

BLOCKS = [32, 128, "row"]


@functools.partial(jax.jit, static_argnames=("block", "out_dtype", "backend"))
def dot(x, w, block=None, out_dtype=None, backend=None):
    return jax_w4a8.dot(x, w, block=block, out_dtype=out_dtype)


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize(
    ("m", "n", "k"),
    [
        (1, 1, 1),
        (1, 1, 32),
        (5, 3, 48),
        (32, 24, 96),
        (127, 72, 160),
        (3, 65, 416),
        (2, 30, 2880),
        (4096, 1, 33),
        (1, 8192, 40),
        (3, 2, 8192),
    ],
)
def test_dense(backend, m, n, k, block):
    rng = np.random.default_rng(m + n + k)
    w = random_weight(rng, (), n, k)
    x = (rng.normal(size=(m, k)) * 2.0 ** rng.integers(-8, 8, (m, 1))).astype(np.float32)
    y = dot(x, w, block=block, backend=backend)
    reference.assert_within_bound(y, *reference.product(quantized_values(x, block), values_of(w)))


@pytest.mark.parametrize("m", [1, 5, 31, 32, 33, 63, 64, 65, 127, 128, 129, 130, 1536])
def test_rows_are_neither_lost_nor_repeated(backend, m):
    n, k = 24, 64
    rng = np.random.default_rng(m)
    w = random_weight(rng, (), n, k)
    x = rng.normal(size=(m, k)).astype(np.float32)
    y = np.asarray(jax_w4a8.dot(x, w))
    assert y.shape == (m, n)
    reference.assert_within_bound(y, *reference.product(quantized_values(x, 128), values_of(w)))
    assert len(np.unique(y, axis=0)) == m


@pytest.mark.parametrize("n", [8, 72, 768, 3072])
@pytest.mark.parametrize("m", [130, 4096])
def test_many_rows_and_columns(backend, m, n):
    rng = np.random.default_rng(n)
    w = random_weight(rng, (), n, 64)
    x = rng.normal(size=(m, 64)).astype(np.float32)
    y = np.asarray(dot(x, w, backend=backend))
    reference.assert_within_bound(y, *reference.product(quantized_values(x, 128), values_of(w)))
    assert len(np.unique(y, axis=0)) == m


@pytest.mark.parametrize("lead", [(0,), (3, 0), (0, 2)])
def test_no_rows(backend, lead):
    y = dot(np.zeros((*lead, 64), np.float32), jax_w4a8.quantize(np.ones((64, 24), np.float32)))
    assert y.shape == (*lead, 24)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("out", ["float32", "bfloat16", "float16"])
def test_dtypes(backend, dtype, out):
    rng = np.random.default_rng(0)
    w = random_weight(rng, (), 40, 192)
    x = rng.normal(size=(9, 192)).astype(jnp.dtype(dtype))
    y = dot(x, w, out_dtype=out, backend=backend)
    assert y.dtype == out
    reference.assert_within_bound(y, *reference.product(quantized_values(x, 128), values_of(w)))
    assert dot(x, w, backend=backend).dtype == dtype


def test_small_powers_of_two_are_exact(backend):
    rng = np.random.default_rng(0)
    kernel = rng.choice([-4.0, -1.0, 0.5, 0.0, 2.0], (512, 48)).astype(np.float32)
    x = rng.choice([-2.0, -1.0, 0.25, 0.0, 8.0], (17, 512)).astype(np.float32)
    y = dot(x, jax_w4a8.quantize(kernel, rule="ceil"), backend=backend)
    np.testing.assert_array_equal(np.asarray(y, np.float64), np.float64(x) @ np.float64(kernel))


def test_nan_stays_in_its_row(backend):
    rng = np.random.default_rng(0)
    w = random_weight(rng, (), 24, 256)
    x = rng.normal(size=(6, 256)).astype(np.float32)
    clean = np.asarray(dot(x, w, backend=backend))
    x[2, 200], x[4, 0] = np.nan, -np.inf
    y = np.asarray(dot(x, w, backend=backend))
    assert np.isnan(y[[2, 4]]).all()
    np.testing.assert_array_equal(np.delete(y, [2, 4], 0), np.delete(clean, [2, 4], 0))


def test_a_large_result_overflows_in_the_cast_alone(backend):
    x = np.full((1, 32), 416, np.float16)
    w = jax_w4a8.quantize(np.array([[8.0, -8.0, 1.0]] * 32, np.float32))
    y = np.asarray(dot(x, w, backend=backend))
    assert y.dtype == np.float16
    np.testing.assert_array_equal(y, [[np.inf, -np.inf, 13312]])
    wide = np.asarray(dot(x, w, out_dtype=jnp.float32, backend=backend))
    np.testing.assert_array_equal(wide, [[106496, -106496, 13312]])


@pytest.mark.parametrize("spread", [10, 60, 120, 170, 254])
def test_scales_far_apart(backend, spread):
    """Scales of a row of x and of the weight that lie ``spread`` binades apart, both at once."""
    rng = np.random.default_rng(spread)
    m, n, k = 5, 6, 320
    half = spread // 2
    w = random_weight(rng, (), n, k, 127 - half, 128 + half)
    codes = rng.integers(0, 256, (m, k), np.uint8)
    codes[codes & 0x7F == 0x7F] = 0
    scales = rng.integers(127 - half, 128 + half, (m, k // 32)).astype(np.uint8)
    a = QuantizedActivation(jax.lax.bitcast_convert_type(codes, jnp.float8_e4m3fn), scales, 32)
    y = dot(a, w, backend=backend)
    exact = reference.dequantize_activation(codes, scales, 32)
    reference.assert_within_bound(y, *reference.product(exact, values_of(w)))


@pytest.mark.parametrize(
    ("x_scale", "w_scale"), [(0, 254), (254, 0), (0, 100), (127, 0), (254, 254)]
)
def test_extreme_scales(backend, x_scale, w_scale):
    rng = np.random.default_rng(0)
    w = random_weight(rng, (), 8, 64, w_scale, w_scale + 1)
    codes = rng.integers(1, 0x7F, (3, 64), np.uint8)
    scales = np.full((3, 2), x_scale, np.uint8)
    a = QuantizedActivation(jax.lax.bitcast_convert_type(codes, jnp.float8_e4m3fn), scales, 32)
    exact, terms = reference.product(
        reference.dequantize_activation(codes, scales, 32), values_of(w)
    )
    y = np.asarray(dot(a, w, backend=backend), np.float64)
    # Results below float32's normal numbers may be flushed.
    flushed = (np.abs(exact) < 2.0**-126) & (y == 0)
    reference.assert_within_bound(np.where(flushed, exact, y).astype(np.float32), exact, terms)


def test_blocks_of_zeros_may_have_any_scale(backend):
    """A scale beside zero codes carries no number, however large."""
    rng = np.random.default_rng(0)
    w = random_weight(rng, (), 8, 96, 20, 24)
    codes, scales = np.array(w.codes), np.array(w.scales)
    codes[:, 16:32], scales[:, 1] = 0, 254
    w = QuantizedWeight(codes, scales)
    x = rng.normal(size=(3, 96)).astype(np.float32)
    x[:, :32] = 0
    y = dot(x, w, block=32, backend=backend)
    reference.assert_within_bound(y, *reference.product(quantized_values(x, 32), values_of(w)))


def test_nan_scales_of_a_weight_reach_its_columns_only(backend):
    rng = np.random.default_rng(0)
    w = random_weight(rng, (), 8, 96)
    scales = np.array(w.scales)
    scales[5, 1] = 255
    broken = QuantizedWeight.from_arrays((w.codes, jnp.asarray(scales)), k=96, n=8, layout="plain")
    x = rng.normal(size=(3, 96)).astype(np.float32)
    y, clean = (np.asarray(dot(x, v, backend=backend)) for v in (broken, w))
    assert np.isnan(y[:, 5]).all()
    np.testing.assert_array_equal(np.delete(y, 5, 1), np.delete(clean, 5, 1))
