"""What a product becomes in StableHLO, and ahead-of-time compilation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_w4a8
from jax_w4a8 import backends

K, N, E, M, ROWS = 64, 8, 3, 5, 2
SIZES = np.array([2, 0, 3], np.int32)
COUNTS = np.array([2, 0, 1], np.int32)


def exact(*shape, seed=0):
    return np.random.default_rng(seed).choice([-1.0, 0.5, 1.0, 2.0], shape).astype("float32")


X, KERNEL = exact(M, K), exact(K, N, seed=1)
SLOTS, EXPERTS = exact(E, ROWS, K, seed=2), exact(E, K, N, seed=3)

PRODUCTS = {
    "dense": (jax_w4a8.dot, (X,), KERNEL, (), X @ KERNEL),
    "grouped": (
        jax_w4a8.grouped_dot,
        (X,),
        EXPERTS,
        (SIZES,),
        np.einsum("mk,mkn->mn", X, EXPERTS[[0, 0, 2, 2, 2]]),
    ),
    "masked": (
        jax_w4a8.masked_grouped_dot,
        (SLOTS,),
        EXPERTS,
        (COUNTS,),
        np.einsum("emk,ekn->emn", SLOTS, EXPERTS) * (np.arange(ROWS) < COUNTS[:, None])[..., None],
    ),
}


def operands(kind):
    op, x, kernel, sizes, expected = PRODUCTS[kind]
    return op, (*x, jax_w4a8.quantize(kernel), *sizes), expected


def targets(text):
    return [
        line.split("@")[1].split("(")[0] for line in text.splitlines() if "custom_call @" in line
    ]


@pytest.mark.parametrize("kind", PRODUCTS)
def test_ahead_of_time(backend, kind):
    """Lowered text, compiled call, and the custom call that the text holds."""
    op, arguments, expected = operands(kind)
    lowered = jax.jit(op).lower(*arguments)
    assert targets(lowered.as_text()) == ([f"jax_w4a8_host_{kind}_v1"] if backend == "host" else [])
    np.testing.assert_array_equal(lowered.compile()(*arguments), expected)


def test_quantize_activation(backend):
    lowered = jax.jit(jax_w4a8.quantize_activation).lower(X)
    assert targets(lowered.as_text()) == (
        ["jax_w4a8_host_quantize_v1"] if backend == "host" else []
    )
    a = lowered.compile()(X)
    np.testing.assert_array_equal(a.dequantize(), X)


def test_quantised_activations_are_not_quantised_again(backend):
    def f(x, w):
        a = jax_w4a8.quantize_activation(x)
        return jax_w4a8.dot(a, w), jax_w4a8.dot(a, w, out_dtype=jnp.bfloat16)

    lowered = jax.jit(f).lower(X, jax_w4a8.quantize(KERNEL))
    if backend == "host":
        assert sorted(targets(lowered.as_text())) == [
            "jax_w4a8_host_dense_v1",
            "jax_w4a8_host_dense_v1",
            "jax_w4a8_host_quantize_v1",
        ]
    y, rounded = lowered.compile()(X, jax_w4a8.quantize(KERNEL))
    np.testing.assert_array_equal(y, X @ KERNEL)
    np.testing.assert_array_equal(rounded, jnp.asarray(X @ KERNEL, jnp.bfloat16))


def test_shapes_alone_are_enough_to_compile(backend):
    w = jax_w4a8.quantize(KERNEL)
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), (jnp.asarray(X), w))
    compiled = jax.jit(jax_w4a8.dot).lower(*shapes).compile()
    np.testing.assert_array_equal(compiled(X, w), X @ KERNEL)


def test_eval_shape(backend):
    w = jax.eval_shape(jax_w4a8.quantize, jax.ShapeDtypeStruct((K, N), jnp.bfloat16))
    assert w.shape == (K, N)
    y = jax.eval_shape(jax_w4a8.dot, jax.ShapeDtypeStruct((2, 3, K), jnp.float16), w)
    assert (y.shape, y.dtype) == ((2, 3, N), jnp.float16)


ON_CUDA = [name for name in backends.NAMES if "cuda" in backends.get(name).platforms]


@pytest.mark.parametrize("kind", PRODUCTS)
@pytest.mark.parametrize("name", ON_CUDA)
def test_lowering_for_a_gpu_from_a_host_without_one(name, kind):
    op, arguments, _ = operands(kind)
    with jax_w4a8.use_backend(name):
        lowered = jax.jit(op).trace(*arguments).lower(lowering_platforms=("cuda",))
    assert targets(lowered.as_text()) == [f"jax_w4a8_{name}_{kind}_v1"]


@pytest.mark.parametrize("name", ON_CUDA)
def test_a_packed_weight_is_not_packed_again(name):
    """What is left beside the custom call is no arithmetic on the weight."""
    packed = jax_w4a8.prepack(jax_w4a8.quantize(exact(128, 128)), layout=name)
    x = exact(M, 128)
    with jax_w4a8.use_backend(name):
        text = jax.jit(jax_w4a8.dot).trace(x, packed).lower(lowering_platforms=("cuda",)).as_text()
    assert targets(text) == [f"jax_w4a8_{name}_dense_v1"]
    for operation in ("stablehlo.transpose", "stablehlo.pad", "stablehlo.gather", "stablehlo.or"):
        assert operation not in text


@pytest.mark.parametrize("platform", ["cuda", "tpu", "rocm"])
def test_the_fallback_is_lowered_for_every_platform(platform):
    with jax_w4a8.use_backend("xla"):
        traced = jax.jit(jax_w4a8.dot).trace(X, jax_w4a8.quantize(KERNEL))
    text = traced.lower(lowering_platforms=(platform,)).as_text()
    assert targets(text) == []
    assert "stablehlo.dot_general" in text


def test_one_module_for_two_platforms():
    with jax_w4a8.use_backend("auto"):
        traced = jax.jit(jax_w4a8.dot).trace(X, jax_w4a8.quantize(KERNEL))
    text = traced.lower(lowering_platforms=("cpu", "cuda")).as_text()
    assert targets(text) == ["jax_w4a8_host_dense_v1"]
    assert "stablehlo.dot_general" in text
