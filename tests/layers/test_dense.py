"""W4A8Dense: values, dtypes, bias, errors."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jax_w4a8
from jax_w4a8.layers import PackedWeight, W4A8Dense
from tests.layers import exact

FLOATS = (None, jnp.float32, jnp.bfloat16, jnp.float16)


def linear(k=64, n=24, seed=0, **options):
    layer = nnx.Linear(k, n, rngs=nnx.Rngs(0), **options)
    layer.kernel[...] = jnp.asarray(exact.kernel(k, n, seed), layer.param_dtype)
    if layer.bias is not None:
        layer.bias[...] = jnp.asarray(exact.bias(n), layer.param_dtype)
    return layer


@pytest.mark.parametrize(("k", "n", "block"), [(64, 24, 128), (48, 7, 32), (300, 8, "row")])
def test_from_dense_computes_the_product_and_the_bias(k, n, block):
    layer = W4A8Dense.from_dense(linear(k, n), block=block)
    x = exact.inputs(2, 3, k)
    expected = exact.product(x, exact.kernel(k, n)) + exact.bias(n)
    np.testing.assert_array_equal(layer(x), expected)
    np.testing.assert_array_equal(jax_w4a8.W4A8Dense.__call__(layer, x[0, 0]), expected[0, 0])


def test_from_packed_weights():
    w = jax_w4a8.quantize(exact.kernel(64, 24))
    layer = W4A8Dense(w, exact.bias(24))
    x = exact.inputs(5, 64)
    expected = exact.product(x, exact.kernel(64, 24))
    np.testing.assert_array_equal(layer(x), expected + exact.bias(24))
    np.testing.assert_array_equal(W4A8Dense(w)(x), expected)
    assert (layer.in_features, layer.out_features, layer.use_bias) == (64, 24, True)
    assert W4A8Dense(w).bias is None


def test_the_float_layer_is_left_as_it_was():
    source = linear()
    layer = W4A8Dense.from_dense(source)
    layer.bias[...] = jnp.zeros(24)
    np.testing.assert_array_equal(source.kernel[...], exact.kernel(64, 24))
    np.testing.assert_array_equal(source.bias[...], exact.bias(24))


def test_zero_weights_leave_exactly_the_bias():
    layer = W4A8Dense(jax_w4a8.quantize(np.zeros((64, 24), np.float32)), exact.bias(24))
    np.testing.assert_array_equal(layer(exact.inputs(3, 64)), np.tile(exact.bias(24), (3, 1)))


def test_no_rows():
    assert W4A8Dense.from_dense(linear())(jnp.zeros((2, 0, 64))).shape == (2, 0, 24)


def test_a_nan_stays_in_its_row():
    x = exact.inputs(3, 64)
    x[1, 5] = np.nan
    nan_rows = np.isnan(W4A8Dense.from_dense(linear())(x)).all(axis=1)
    np.testing.assert_array_equal(nan_rows, [False, True, False])


@pytest.mark.parametrize("x_dtype", [jnp.float32, jnp.bfloat16, jnp.float16, jnp.int32])
def test_dtypes_are_those_of_linear(x_dtype):
    x = jax.ShapeDtypeStruct((2, 64), x_dtype)
    for dtype, param_dtype, preferred in itertools.product(FLOATS, FLOATS[1:], FLOATS[:2]):
        options = {"dtype": dtype, "preferred_element_type": preferred}
        make = functools.partial(linear, param_dtype=param_dtype, **options)
        source = nnx.eval_shape(make)
        expected = nnx.eval_shape(lambda layer, x: layer(x), source, x)
        got = nnx.eval_shape(lambda layer, x: W4A8Dense.from_dense(layer)(x), source, x)
        assert got == expected, (x_dtype, param_dtype, options)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_the_product_is_rounded_to_the_dtype_before_the_bias(dtype):
    layer = W4A8Dense.from_dense(linear(dtype=dtype))
    x = exact.inputs(4, 64)
    rounded = exact.product(x, exact.kernel(64, 24)).astype(dtype)
    y = layer(x)
    assert y.dtype == dtype
    expected = (rounded.astype(np.float32) + exact.bias(24)).astype(dtype)
    np.testing.assert_array_equal(np.asarray(y), expected)


def test_weak_types_and_integers_promote_as_in_linear():
    layer = W4A8Dense.from_dense(linear(param_dtype=jnp.bfloat16))
    assert layer(np.ones((2, 64), np.int32)).dtype == jnp.bfloat16
    assert layer([1.0] * 64).dtype == linear(param_dtype=jnp.bfloat16)([1.0] * 64).dtype


def test_one_quantisation_serves_several_layers():
    x = exact.inputs(3, 64)
    a = jax_w4a8.quantize_activation(x)
    for seed in (0, 1):
        layer = W4A8Dense.from_dense(linear(seed=seed))
        np.testing.assert_array_equal(layer(a), layer(x))
    with pytest.raises(ValueError, match="block: x was quantised with block=128, got block=32"):
        W4A8Dense.from_dense(linear(), block=32)(a)


def test_bytes_are_those_of_the_packed_weight():
    layer = W4A8Dense.from_dense(linear(64, 24, use_bias=False))
    stored = sum(a.nbytes for a in jax.tree.leaves(nnx.state(layer)))
    assert stored == 24 * 64 // 2 + 24 * 64 // 32


def test_only_the_bias_is_a_parameter():
    layer = W4A8Dense.from_dense(linear())
    assert list(nnx.state(layer, nnx.Param)) == ["bias"]
    assert list(nnx.state(layer, PackedWeight)) == ["kernel"]


class Overriding(nnx.Linear):
    def __call__(self, inputs):
        return 2 * super().__call__(inputs)


def test_a_subclass_that_computes_the_same_is_quantised():
    class Named(nnx.Linear):
        pass

    layer = Named(32, 4, rngs=nnx.Rngs(0))
    assert W4A8Dense.from_dense(layer).out_features == 4


W = jax_w4a8.quantize(exact.kernel(64, 24))
REFUSED = {
    "float kernel": (
        lambda: W4A8Dense(jnp.ones((64, 24))),
        TypeError,
        r"kernel: expected a QuantizedWeight, got \w*Array.*; quantise it with "
        r"jax_w4a8.quantize\(kernel\), or call W4A8Dense.from_dense\(linear\)",
    ),
    "bias shape": (
        lambda: W4A8Dense(W, jnp.ones(64)),
        ValueError,
        r"bias: expected floats of shape \(24,\), got float32 \(64,\)",
    ),
    "bias dtype": (
        lambda: W4A8Dense(W, jnp.ones(24, jnp.int32)),
        ValueError,
        r"bias: expected floats of shape \(24,\), got int32 \(24,\)",
    ),
    "block": (
        lambda: W4A8Dense(W, block=64),
        ValueError,
        "block: expected 32, 128 or 'row', got 64",
    ),
    "dtype": (
        lambda: W4A8Dense(W, dtype=jnp.int8),
        TypeError,
        "dtype: expected float32, bfloat16 or float16, got int8",
    ),
    "float64": (
        lambda: W4A8Dense(W, preferred_element_type="float64"),
        TypeError,
        "preferred_element_type: expected float32, bfloat16 or float16, got float64",
    ),
    "not a layer": (
        lambda: W4A8Dense.from_dense(jnp.ones((64, 24))),
        TypeError,
        r"layer: expected flax.nnx.Linear, got \w*Array",
    ),
    "other layer": (
        lambda: W4A8Dense.from_dense(nnx.Embed(4, 4, rngs=nnx.Rngs(0))),
        TypeError,
        "layer: expected flax.nnx.Linear, got Embed",
    ),
    "overriding": (
        lambda: W4A8Dense.from_dense(Overriding(64, 24, rngs=nnx.Rngs(0))),
        TypeError,
        "layer: expected flax.nnx.Linear, got Overriding",
    ),
    "dot_general": (
        lambda: W4A8Dense.from_dense(linear(dot_general=lambda *a, **k: None)),
        ValueError,
        "layer: expected an nnx.Linear without a dot_general of its own, got",
    ),
    "not finite": (
        lambda: W4A8Dense.from_dense(_with_nan()),
        ValueError,
        "kernel: expected finite weights, got NaN or infinity",
    ),
    "input shape": (
        lambda: W4A8Dense(W)(jnp.ones((2, 63))),
        ValueError,
        r"x: expected a last dimension of K = 64 to match w \(64, 24\), got shape \(2, 63\)",
    ),
    "complex input": (
        lambda: W4A8Dense(W)(jnp.ones((2, 64), jnp.complex64)),
        TypeError,
        "x: expected float32, bfloat16 or float16, got complex64",
    ),
}


def _with_nan():
    layer = linear()
    layer.kernel[...] = layer.kernel[...].at[3, 5].set(jnp.nan)
    return layer


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    call, kind, message = REFUSED[case]
    with pytest.raises(kind, match=message):
        call()
