"""Gradients: ``g @ dequantize(w)^T`` for x, whatever its quantiser did; none for the weight."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_w4a8

E, M, ROWS, N = 3, 6, 4, 8
SIZES = np.array([2, 0, 3], np.int32)
COUNTS = np.array([4, 0, 1], np.int32)


def exact(*shape, seed=0):
    return np.random.default_rng(seed).choice([-1.0, 0.5, 1.0, 2.0], shape).astype("float32")


def cotangent(f, x, g):
    """The cotangent of ``x`` for ``g``, by jit."""
    return jax.jit(lambda x, g: jax.vjp(f, x)[1](g)[0])(x, g)


@pytest.mark.parametrize(
    ("k", "dtype"), [(32, "float32"), (48, "float32"), (48, "bfloat16"), (48, "float16")]
)
def test_dense(backend, k, dtype):
    """A K of 48 is padded; the cotangent has the dtype of x."""
    kernel, g = exact(k, N), exact(M, N, seed=1)
    x = jnp.asarray(np.random.default_rng(2).normal(size=(M, k)), dtype)
    w = jax_w4a8.quantize(kernel)
    dx = cotangent(lambda x: jax_w4a8.dot(x, w), x, jnp.asarray(g, dtype))
    assert (dx.shape, dx.dtype) == (x.shape, x.dtype)
    np.testing.assert_array_equal(np.asarray(dx, np.float64), np.float64(g @ kernel.T))


def test_with_random_weights_within_float32(backend):
    rng = np.random.default_rng(0)
    w = jax_w4a8.quantize(rng.normal(size=(96, 40)).astype(np.float32))
    x, g = rng.normal(size=(5, 96)).astype(np.float32), rng.normal(size=(5, 40)).astype(np.float32)
    dx = cotangent(lambda x: jax_w4a8.dot(x, w), x, g)
    values = np.asarray(w.dequantize(), np.float64)
    bound = 2.0**-20 * (abs(np.float64(g)) @ abs(values).T)
    assert (abs(np.asarray(dx, np.float64) - np.float64(g) @ values.T) <= bound).all()


def test_out_dtype(backend):
    """A bfloat16 result of float32 activations: its cotangent is bfloat16, x's is float32."""
    kernel, g = exact(32, N), exact(M, N, seed=1)
    w = jax_w4a8.quantize(kernel)
    dx = cotangent(
        lambda x: jax_w4a8.dot(x, w, out_dtype=jnp.bfloat16), exact(M, 32), jnp.bfloat16(g)
    )
    assert dx.dtype == jnp.float32
    np.testing.assert_array_equal(dx, g @ kernel.T)


def test_the_quantiser_is_the_identity(backend):
    """Values that saturate beside a larger one, or vanish, have their gradient all the same."""
    kernel = exact(32, N)
    w = jax_w4a8.quantize(kernel)
    x = np.full((1, 32), 1e-12, np.float32)
    x[0, 0] = 1e6
    g = exact(1, N, seed=1)
    np.testing.assert_array_equal(cotangent(lambda x: jax_w4a8.dot(x, w), x, g), g @ kernel.T)


@pytest.mark.parametrize("k", [32, 48])
def test_grouped(backend, k):
    """Rows past the sum of the sizes have a cotangent of zero, whatever theirs in the result."""
    experts, g = exact(E, k, N), exact(M, N, seed=1)
    g[5:] = np.nan
    w = jax_w4a8.quantize(experts)
    dx = cotangent(lambda x: jax_w4a8.grouped_dot(x, w, SIZES), exact(M, k, seed=2), g)
    expected = np.zeros((M, k), np.float32)
    expected[:2] = g[:2] @ experts[0].T
    expected[2:5] = g[2:5] @ experts[2].T
    np.testing.assert_array_equal(dx, expected)


@pytest.mark.parametrize("k", [32, 48])
def test_masked(backend, k):
    experts, g = exact(E, k, N), exact(E, ROWS, N, seed=1)
    used = np.arange(ROWS) < COUNTS[:, None]
    expected = np.einsum("emn,ekn->emk", g, experts) * used[..., None]
    g[~used] = np.nan
    w = jax_w4a8.quantize(experts)
    dx = cotangent(lambda x: jax_w4a8.masked_grouped_dot(x, w, COUNTS), exact(E, ROWS, k), g)
    np.testing.assert_array_equal(dx, expected)


def test_leading_dimensions(backend):
    kernel, g = exact(32, N), exact(2, 3, N, seed=1)
    w = jax_w4a8.quantize(kernel)
    dx = cotangent(lambda x: jax_w4a8.dot(x, w), exact(2, 3, 32), g)
    np.testing.assert_array_equal(dx, g @ kernel.T)


def test_of_weight_and_sizes_is_none(backend):
    w = jax_w4a8.quantize(exact(E, 32, N))

    def cotangents(x):
        return jax.vjp(jax_w4a8.grouped_dot, x, w, SIZES)[1](jnp.ones((M, N)))

    dx, *others = jax.eval_shape(cotangents, exact(M, 32))
    assert dx.dtype == jnp.float32
    assert {leaf.dtype for leaf in jax.tree.leaves(others)} == {jax.dtypes.float0}
    with pytest.raises(TypeError, match="got uint8"):
        jax.grad(lambda w: jnp.sum(jax_w4a8.grouped_dot(exact(M, 32), w, SIZES)))(w)


def test_quantised_activations_have_none(backend):
    """``quantize_activation`` stops the gradient, as its documentation says."""
    w = jax_w4a8.quantize(exact(32, N))

    def f(x):
        return jnp.sum(jax_w4a8.dot(jax_w4a8.quantize_activation(x), w)) + jnp.sum(x)

    np.testing.assert_array_equal(jax.jit(jax.grad(f))(exact(M, 32)), np.ones((M, 32)))


def test_packed_weights(backend):
    """A weight in another kernel's layout has the same gradient where it can be computed at all."""
    kernel, g = exact(48, N), exact(M, N, seed=1)
    packed = jax_w4a8.prepack(jax_w4a8.quantize(kernel))
    dx = cotangent(lambda x: jax_w4a8.dot(x, packed), exact(M, 48), g)
    np.testing.assert_array_equal(dx, g @ kernel.T)


def test_second_order(backend):
    """The product is linear in x, so that only the loss has a second derivative."""
    kernel = exact(32, N)
    w = jax_w4a8.quantize(kernel)
    x, v = exact(32), exact(32, seed=3)

    def loss(x):
        return jnp.sum(jax_w4a8.dot(x, w) ** 2)

    hv = jax.jit(jax.grad(lambda x: jnp.vdot(jax.grad(loss)(x), v)))(x)
    np.testing.assert_array_equal(hv, 2 * (v @ kernel) @ kernel.T)
