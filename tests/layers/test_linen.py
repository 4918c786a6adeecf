"""The Linen W4A8Dense and the conversion of float parameters to its variables."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import serialization

import jax_w4a8
from jax_w4a8.linen import W4A8Dense, quantize_params
from tests.layers import exact

K, N = 64, 24
FLOATS = (None, jnp.float32, jnp.bfloat16, jnp.float16)


class Model(nn.Module):
    """Two layers of the class that it is given, under names of their own."""

    dense: type

    @nn.compact
    def __call__(self, x):
        x = jnp.clip(self.dense(K, name="up")(x), -15, 15)
        return self.dense(N, use_bias=False, name="down")(x)


class Scanned(nn.Module):
    """Three layers in one scan."""

    dense: type

    @nn.compact
    def __call__(self, x):
        scan = nn.scan(
            lambda layer, x, _: (jnp.round(layer(x) / 16), None),
            variable_axes={"params": 0, "quantized": 0},
            split_rngs={"params": True},
            length=3,
        )
        return scan(self.dense(K, name="layer"), x, None)[0]


PARAMS = {
    "up": {"kernel": exact.kernel(K, K), "bias": exact.bias(K)},
    "down": {"kernel": exact.kernel(K, N, seed=3)},
}


def test_converted_parameters_give_the_same_product():
    variables = quantize_params({"kernel": exact.kernel(48, N), "bias": exact.bias(N)})
    x = exact.inputs(2, 3, 48)
    expected = exact.product(x, exact.kernel(48, N)) + exact.bias(N)
    np.testing.assert_array_equal(W4A8Dense(N).apply(variables, x), expected)


def test_a_converted_model_under_jit():
    variables, x = quantize_params(PARAMS), exact.inputs(3, K)
    y = jax.jit(Model(W4A8Dense).apply)(variables, x)
    np.testing.assert_array_equal(y, Model(W4A8Dense).apply(variables, x))
    hidden = exact.product(x, PARAMS["up"]["kernel"]) + PARAMS["up"]["bias"]
    last = {"params": {}, "quantized": variables["quantized"]["down"]}
    clipped = np.clip(hidden, -15, 15).astype(np.float32)
    expected = W4A8Dense(N, use_bias=False).apply(last, clipped)
    np.testing.assert_array_equal(y, expected)


def test_collections_of_the_converted_model():
    variables = quantize_params(PARAMS)
    assert jax.tree.map(jnp.shape, variables["params"]) == {"up": {"bias": (K,)}}
    kernels = jax.tree.leaves(
        variables["quantized"], is_leaf=lambda v: isinstance(v, jax_w4a8.QuantizedWeight)
    )
    assert [kernel.shape for kernel in kernels] == [(K, N), (K, K)]


def test_where_selects_by_path():
    seen = []
    variables = quantize_params(PARAMS, where=lambda path: seen.append(path) or path == ("up",))
    assert sorted(seen) == [("down",), ("up",)]
    assert set(variables["quantized"]) == {"up"}
    np.testing.assert_array_equal(variables["params"]["down"]["kernel"], PARAMS["down"]["kernel"])


def test_convolutions_and_norms_stay_by_default():
    params = {
        "conv": {"kernel": np.ones((3, 4, 8), np.float32), "bias": np.ones(8, np.float32)},
        "norm": {"scale": np.ones(K, np.float32)},
        "embed": {"embedding": np.ones((5, K), np.float32)},
        **PARAMS,
    }
    variables = quantize_params(params)
    assert set(variables["quantized"]) == {"up", "down"}
    assert set(variables["params"]) == {"conv", "norm", "embed", "up"}


def test_init_quantises_what_dense_would_have_drawn():
    x = exact.inputs(3, K)
    drawn = Model(nn.Dense).init(jax.random.key(0), x)["params"]
    variables = jax.jit(Model(W4A8Dense).init)(jax.random.key(0), x)
    expected = quantize_params(drawn)
    assert jax.tree.structure(variables) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, variables, expected)


def test_partitioned_kernels_are_unboxed():
    init = nn.with_partitioning(nn.initializers.lecun_normal(), ("in", "out"))
    boxed = nn.Dense(N, kernel_init=init).init(jax.random.key(0), jnp.ones((1, K)))["params"]
    variables = W4A8Dense(N, kernel_init=init).init(jax.random.key(0), jnp.ones((1, K)))
    jax.tree.map(np.testing.assert_array_equal, variables, quantize_params(boxed))


@pytest.mark.parametrize("x_dtype", [jnp.float32, jnp.bfloat16, jnp.float16, jnp.int32])
def test_dtypes_are_those_of_dense(x_dtype):
    x, key = jax.ShapeDtypeStruct((2, K), x_dtype), jax.random.key(0)
    for dtype, param_dtype in itertools.product(FLOATS, FLOATS[1:]):
        got, expected = (
            jax.eval_shape(
                functools.partial(kind(N, dtype=dtype, param_dtype=param_dtype).init_with_output),
                key,
                x,
            )
            for kind in (W4A8Dense, nn.Dense)
        )
        assert got[0] == expected[0], (x_dtype, dtype, param_dtype)
        assert got[1]["params"]["bias"] == expected[1]["params"]["bias"]


def test_gradients_reach_parameters_and_inputs_only():
    variables = quantize_params({"kernel": exact.kernel(K, N), "bias": exact.bias(N)})
    x, g = exact.inputs(3, K), exact.inputs(3, N, seed=5)

    def loss(params, x):
        return jnp.sum(W4A8Dense(N).apply({**variables, "params": params}, x) * g)

    of_params, of_x = jax.grad(loss, argnums=(0, 1))(variables["params"], x)
    np.testing.assert_array_equal(of_params["bias"], g.sum(axis=0))
    np.testing.assert_array_equal(of_x, exact.product(g, exact.kernel(K, N).T))


def test_scan_equals_a_loop():
    kernels = np.stack([exact.kernel(K, K, seed) / 8 for seed in range(3)])
    params = {"layer": {"kernel": kernels, "bias": np.stack([exact.bias(K)] * 3)}}
    variables, x = (
        quantize_params(params, where=lambda path: path == ("layer",)),
        exact.inputs(2, K),
    )
    looped = x
    for kernel in kernels:
        one = quantize_params({"kernel": kernel, "bias": exact.bias(K)})
        looped = jnp.round(W4A8Dense(K).apply(one, looped) / 16)
    np.testing.assert_array_equal(Scanned(W4A8Dense).apply(variables, x), looped)
    drawn = Scanned(W4A8Dense).init(jax.random.key(0), x)
    assert jax.tree.structure(drawn) == jax.tree.structure(variables)


def test_serialisation_brings_the_variables_back():
    variables, x = quantize_params(PARAMS), exact.inputs(3, K)
    target = Model(W4A8Dense).init(jax.random.key(0), x)
    restored = serialization.from_bytes(target, serialization.to_bytes(variables))
    assert jax.tree.structure(restored) == jax.tree.structure(variables)
    jax.tree.map(np.testing.assert_array_equal, restored, variables)


def _apply(features, variables, k=K):
    return W4A8Dense(features).apply(variables, jnp.ones((1, k)))


PACKED = quantize_params({"kernel": exact.kernel(K, N), "bias": exact.bias(N)})
STATE = serialization.to_state_dict(PACKED["quantized"])
REFUSED = {
    "no packed kernel": (
        lambda: _apply(N, {"params": {"bias": jnp.ones(N)}}),
        ValueError,
        "variables: expected the packed kernel of the model in the collection 'quantized', got "
        r"none; jax_w4a8.linen.quantize_params\(params\) makes it from float parameters",
    ),
    "float kernel": (
        lambda: _apply(N, {**PACKED, "quantized": {"kernel": jnp.ones((K, N))}}),
        ValueError,
        r"variables: expected a QuantizedWeight of shape \(64, 24\) as the kernel of the model",
    ),
    "other features": (
        lambda: _apply(N + 1, PACKED),
        ValueError,
        r"variables: expected a QuantizedWeight of shape \(64, 25\) .* got QuantizedWeight",
    ),
    "other inputs": (
        lambda: _apply(N, PACKED, k=65),
        ValueError,
        r"variables: expected a QuantizedWeight of shape \(65, 24\)",
    ),
    "dtype": (
        lambda: W4A8Dense(N, dtype=jnp.int8).apply(PACKED, jnp.ones((1, K))),
        TypeError,
        "dtype: expected float32, bfloat16 or float16, got int8",
    ),
    "block": (
        lambda: W4A8Dense(N, block=64).apply(PACKED, jnp.ones((1, K))),
        ValueError,
        "block: expected 32, 128 or 'row', got 64",
    ),
    "nothing selected": (
        lambda: quantize_params(PARAMS, where=lambda path: False),
        ValueError,
        "where: expected to select a kernel, selected none; params hold down, up",
    ),
    "nothing to select": (
        lambda: quantize_params({"scale": np.ones(3)}),
        ValueError,
        "where: expected to select a kernel, selected none; params hold no kernel at all",
    ),
    "not finite": (
        lambda: quantize_params({"up": {"kernel": np.full((K, N), np.nan, np.float32)}}),
        ValueError,
        "params: 'up/kernel': kernel: expected finite weights, got NaN or infinity",
    ),
    "state of another shape": (
        lambda: serialization.from_state_dict(
            quantize_params({"kernel": exact.kernel(K, K)})["quantized"], STATE
        ),
        ValueError,
        "state: expected arrays of shapes",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    call, kind, message = REFUSED[case]
    with pytest.raises(kind, match=message):
        call()
