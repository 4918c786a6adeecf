"""``quantize``: scale rules, rounding, padding, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_w4a8
from jax_w4a8 import QuantizedWeight
from tests import reference

RULES = ["ceil", "floor", "even", "mse"]


def column(*values):
    """A kernel ``[32, 1]`` that begins with ``values``."""
    kernel = np.zeros((32, 1), np.float32)
    kernel[: len(values), 0] = values
    return kernel


def blocks_of(kernel):
    """``[..., N, blocks, 32]`` in float64."""
    return reference.blocks(np.swapaxes(reference.flush(kernel), -1, -2), 32)


def scales_of(kernel, rule):
    """UE8M0 bytes of the two plain rules."""
    amax = np.abs(blocks_of(kernel)).max(-1)
    return reference.scale_ceil(amax, 6) if rule == "ceil" else reference.scale_floor(amax)


def rounded(kernel, scales):
    """The blocks that the codes stand for under ``scales``."""
    factors = reference.UE8M0[scales][..., None]
    return reference.E2M1[reference.encode_e2m1(blocks_of(kernel) / factors)] * factors


@pytest.mark.parametrize(
    ("rule", "amax", "byte"),
    [
        ("floor", 7, 127),
        ("ceil", 7, 128),
        ("floor", 6, 127),
        ("ceil", 6, 127),
        ("even", 6.9, 127),
        ("even", 7.0, 128),
        # Passing through bfloat16 would round this to 4, whose byte is 127.
        ("floor", 3.9999998, 126),
    ],
)
def test_scale_of_a_block(rule, amax, byte):
    for sign in (1, -1):
        assert int(jax_w4a8.quantize(column(sign * amax), rule=rule).scales[0, 0]) == byte


def test_seven_clips_under_floor_and_not_under_ceil():
    assert jax_w4a8.quantize(column(7), rule="floor").dequantize()[0, 0] == 6
    assert jax_w4a8.quantize(column(7), rule="ceil").dequantize()[0, 0] == 8


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("rule", ["ceil", "floor"])
def test_codes_and_scales_are_the_reference_s(rule, dtype):
    rng = np.random.default_rng(0)
    kernel = rng.normal(size=(3, 96, 40)) * 2.0 ** rng.integers(-14, 14, (3, 1, 40))
    kernel = kernel.astype(jnp.dtype(dtype))
    w = jax_w4a8.quantize(kernel, rule=rule)
    scales = scales_of(kernel, rule)
    np.testing.assert_array_equal(np.asarray(w.scales), scales)
    values = np.swapaxes(np.asarray(w.dequantize(), np.float64), -1, -2)
    np.testing.assert_array_equal(values, rounded(kernel, scales).reshape(values.shape))
    inside = jax.jit(lambda k: jax_w4a8.quantize(k, rule=rule))(kernel)
    np.testing.assert_array_equal(np.asarray(inside.codes), np.asarray(w.codes))
    np.testing.assert_array_equal(np.asarray(inside.scales), scales)


def float_edges(dtype):
    """Every power of two with its neighbours, zeros, subnormals, both signs."""
    limits = jnp.finfo(dtype)
    bits = 32 if dtype == "float32" else 16
    words = np.arange((1 << limits.nexp) - 1, dtype=np.uint32) << limits.nmant
    half = words + (1 << limits.nmant - 1)
    words = np.concatenate([words, words + 1, np.maximum(words, 1) - 1, half, half - 1])
    words = np.concatenate([words, words | 1 << (bits - 1)])
    return words.astype(f"uint{bits}").view(jnp.dtype(dtype)).astype(np.float32)


def scale_even(amax):
    """The floor rule of ``amax`` rounded to one bit of mantissa, halves up."""
    mantissa, exponent = np.frexp(np.asarray(amax, np.float64))
    return reference.scale_floor(np.ldexp(np.floor(mantissa * 4 + 0.5) / 4, exponent))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("rule", RULES)
def test_every_kind_of_number(rule, dtype):
    """As the largest of a block, alone and beside smaller ones; the same bits in eager and jit."""
    values = float_edges(dtype)
    rng = np.random.default_rng(0)
    alone = np.zeros((32, len(values)), np.float32)
    alone[0] = values
    beside = rng.uniform(-1, 1, (32, len(values))).astype(np.float32) * np.abs(values)
    beside[7] = values
    kernel = np.concatenate([alone, beside], 1).astype(jnp.dtype(dtype))
    w = jax_w4a8.quantize(kernel, rule=rule)
    inside = jax.jit(lambda kernel: jax_w4a8.quantize(kernel, rule=rule))(kernel)
    np.testing.assert_array_equal(np.asarray(inside.codes), np.asarray(w.codes))
    np.testing.assert_array_equal(np.asarray(inside.scales), np.asarray(w.scales))
    scales, ceil, floor = (
        np.asarray(w.scales),
        scales_of(kernel, "ceil"),
        scales_of(kernel, "floor"),
    )
    if rule == "mse":
        assert ((scales == ceil) | (scales == floor)).all()
    else:
        even = scale_even(np.abs(blocks_of(kernel)).max(-1))
        np.testing.assert_array_equal(scales, {"ceil": ceil, "floor": floor, "even": even}[rule])
    values = np.swapaxes(np.asarray(w.dequantize(), np.float64), -1, -2)
    exact = rounded(kernel, scales).reshape(values.shape)
    # A float32 below its normal numbers may be flushed.
    np.testing.assert_array_equal(np.where(values == 0, 0, exact), values)
    assert (np.abs(exact[values == 0]) < 2.0**-126).all()


def test_mse_takes_the_better_of_ceil_and_floor():
    rng = np.random.default_rng(0)
    kernel = rng.normal(size=(256, 200)).astype(np.float32)
    errors = {}
    for rule in RULES:
        w = jax_w4a8.quantize(kernel, rule=rule)
        values = np.swapaxes(np.asarray(w.dequantize(), np.float64), -1, -2)
        difference = values.reshape(200, 8, 32) - blocks_of(kernel)
        errors[rule] = np.square(difference).sum(-1)
    best = np.minimum(errors["ceil"], errors["floor"])
    # The rule compares in steps of 2**-10 of the scale.
    np.testing.assert_allclose(errors["mse"], best, rtol=2e-2)
    assert errors["mse"].sum() < min(errors[rule].sum() for rule in ("ceil", "floor"))


def test_zeros_have_a_finite_scale():
    for rule in RULES:
        w = jax_w4a8.quantize(np.zeros((64, 3), np.float32), rule=rule)
        np.testing.assert_array_equal(np.asarray(w.codes), 0)
        assert (np.asarray(w.scales) == 127).all()
        np.testing.assert_array_equal(np.asarray(w.dequantize()), 0)


@pytest.mark.parametrize("rule", RULES)
def test_the_largest_weights_stay_finite(rule):
    """4 * 2**126 is no float32: what rounds to it becomes 3 * 2**126."""
    largest = np.finfo(np.float32).max
    w = jax_w4a8.quantize(column(largest, -largest, 2.9e38, 2.5e38), rule=rule)
    values = np.asarray(w.dequantize(), np.float64)[:4, 0] / 2.0**126
    np.testing.assert_array_equal(values, [3, -3, 3, 3])


def test_one_element_that_is_not_zero():
    kernel = np.zeros((256, 256), np.float32)
    kernel[17, 200] = 0.75
    w = jax_w4a8.quantize(kernel)
    np.testing.assert_array_equal(np.asarray(w.dequantize()), kernel)
    y = jax_w4a8.dot(np.ones((2, 256), np.float32), w)
    np.testing.assert_array_equal(np.asarray(y), np.ones((2, 1)) @ kernel.sum(0, keepdims=True))


@pytest.mark.parametrize("k", [1, 33, 48])
def test_k_is_padded_with_zeros(k):
    kernel = np.random.default_rng(0).normal(size=(k, 5)).astype(np.float32)
    w = jax_w4a8.quantize(kernel, rule="ceil")
    padded = -(-k // 32) * 32
    assert (w.shape, w.codes.shape) == ((k, 5), (5, padded // 2))
    whole = jax_w4a8.quantize(np.pad(kernel, [(0, padded - k), (0, 0)]), rule="ceil")
    np.testing.assert_array_equal(np.asarray(w.codes), np.asarray(whole.codes))
    assert w.dequantize().shape == (k, 5)


def test_low_nibble_is_the_even_k():
    w = jax_w4a8.quantize(column(0.5, 1.0, 6.0), rule="ceil")
    assert np.asarray(w.codes)[0, 0] == 0x21


def test_bytes_stored():
    w = jax_w4a8.quantize(np.ones((4, 128, 24), np.float32))
    assert w.nbytes == 4 * (128 * 24 // 2 + 128 * 24 // 32)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_refused(bad):
    with pytest.raises(ValueError, match="kernel: expected finite weights, got NaN or infinity"):
        jax_w4a8.quantize(column(1, bad))
    # Values are not known under jit: there the block becomes NaN, and never a number.
    w = jax.jit(jax_w4a8.quantize)(column(1, bad))
    assert np.asarray(w.scales)[0, 0] == 255
    assert np.isnan(np.asarray(w.dequantize())).any()


def test_from_codes_and_scales_of_other_dtypes():
    codes = jnp.asarray([[0x21] * 16], jnp.uint8)
    scales = jnp.asarray([[127]], jnp.uint8)
    e8m0 = jax.lax.bitcast_convert_type(scales, jnp.float8_e8m0fnu)
    nibbles = jnp.stack([codes & 15, codes >> 4], -1).reshape(1, 32)
    e2m1 = jax.lax.bitcast_convert_type(nibbles.astype(jnp.uint4), jnp.float4_e2m1fn)
    for c, s in ((codes, scales), (codes, e8m0), (e2m1, scales)):
        w = QuantizedWeight(c, s)
        assert w.shape == (32, 1)
        np.testing.assert_array_equal(np.asarray(w.dequantize())[:, 0], [0.5, 1.0] * 16)


def test_scale_bytes_are_taken_as_they_are():
    bytes_ = np.array([[120, 125, 127, 130, 140]], np.uint8)
    w = QuantizedWeight(np.full((1, 80), 0x22, np.uint8), bytes_)
    expected = np.repeat(2.0 ** (bytes_[0].astype(int) - 127), 32)
    np.testing.assert_array_equal(np.asarray(w.dequantize())[:, 0], expected)
