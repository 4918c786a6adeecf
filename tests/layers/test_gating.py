"""Gated activations, in floats and quantised."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_w4a8
from jax_w4a8.layers.gating import (
    clamped_swiglu,
    quantized_clamped_swiglu,
    quantized_silu_mul,
    silu_mul,
)
from tests.layers import moe_loop

PAIRS = {
    "silu": (silu_mul, quantized_silu_mul),
    "clamped_swiglu": (clamped_swiglu, quantized_clamped_swiglu),
}


def inputs(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32) * 8


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("interleaved", [False, True])
def test_values(name, interleaved):
    h = inputs(3, 4, 60)
    y = PAIRS[name][0](h, interleaved=interleaved)
    expected = [moe_loop.gate(row, name, interleaved) for row in h.astype(float).reshape(12, 60)]
    assert y.shape == (3, 4, 30)
    np.testing.assert_allclose(y.reshape(12, 30), expected, rtol=1e-5, atol=1e-5)


def test_the_clamps_of_gpt_oss():
    gate, up = [100.0, -100.0, 2.0, 7.0], [50.0, 1.0, -50.0, 7.0]
    h = np.stack([gate, up], axis=-1).reshape(8).astype(np.float32)
    s = moe_loop.sigmoid
    expected = [
        7 * s(7 * 1.702) * 8,
        -100 * s(-170.2) * 2,
        2 * s(2 * 1.702) * -6,
        7 * s(11.914) * 8,
    ]
    np.testing.assert_allclose(clamped_swiglu(h), expected, rtol=1e-5, atol=1e-30)


@pytest.mark.parametrize("name", PAIRS)
def test_a_nan_stays(name):
    h = np.ones((2, 8), np.float32)
    h[0, 1] = np.nan
    y = np.asarray(PAIRS[name][0](h))
    assert np.isnan(y).sum() == 1
    quantised = PAIRS[name][1](h)
    assert np.isnan(np.asarray(quantised.dequantize())[0]).all()
    assert np.isfinite(np.asarray(quantised.dequantize())[1]).all()


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_dtypes_are_rounded_to_once(name, dtype):
    h = jnp.asarray(inputs(5, 32), dtype)
    y = PAIRS[name][0](h)
    assert y.dtype == dtype
    np.testing.assert_array_equal(y, PAIRS[name][0](h.astype(jnp.float32)).astype(dtype))
    assert PAIRS[name][0](h, out_dtype=jnp.float32).dtype == jnp.float32


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("block", [32, 128, "row"])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("jit", [False, True])
def test_quantised_is_the_quantised_float32_result(name, block, dtype, jit):
    function, quantised = PAIRS[name]
    h = jnp.asarray(inputs(4, 2 * 300), dtype)

    def both(h):
        floats = function(h, interleaved=True, out_dtype=jnp.float32)
        return (
            quantised(h, interleaved=True, block=block),
            jax_w4a8.quantize_activation(floats, block=block),
        )

    got, expected = (jax.jit(both) if jit else both)(h)
    np.testing.assert_array_equal(got.scales, expected.scales)
    np.testing.assert_array_equal(
        np.asarray(got.codes).view(np.uint8), np.asarray(expected.codes).view(np.uint8)
    )
    assert got.block == block
    assert got.dtype == dtype


def test_a_product_takes_the_quantised_result():
    h = inputs(4, 128)
    w = jax_w4a8.quantize(inputs(64, 24))
    y = jax_w4a8.dot(quantized_silu_mul(h), w)
    np.testing.assert_array_equal(y, jax_w4a8.dot(silu_mul(h), w))


@pytest.mark.parametrize("name", PAIRS)
def test_gradients(name):
    h = inputs(10) / 4
    gradient = jax.grad(lambda h: jnp.sum(PAIRS[name][0](h, interleaved=True)))(jnp.asarray(h))
    step = 1e-5
    for i in range(10):
        d = step * np.eye(10)[i]
        ends = [moe_loop.gate(h.astype(float) + s * d, name, True).sum() for s in (1, -1)]
        np.testing.assert_allclose(gradient[i], (ends[0] - ends[1]) / (2 * step), atol=1e-4)


@pytest.mark.parametrize("function", [f for pair in PAIRS.values() for f in pair])
def test_what_is_refused(function):
    with pytest.raises(ValueError, match=r"h: expected shape \[\.\.\., 2 \* I\]"):
        function(jnp.ones((2, 5)))
    with pytest.raises(TypeError, match="h: expected floats"):
        function(jnp.ones((2, 4), jnp.int32))
