"""``shard_map`` with its default checks: over M, N, K and experts, and the gradient."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import jax_w4a8

M, N, K, E, ROWS = 16, 32, 256, 8, 3
COUNTS = np.array([3, 0, 1, 2, 3, 3, 0, 1], np.int32)


@pytest.fixture(scope="module")
def mesh():
    return jax.make_mesh((8,), ("a",), axis_types=(AxisType.Auto,))


def exact(*shape, seed=0):
    return np.random.default_rng(seed).choice([-1.0, -0.5, 0.5, 1.0, 2.0], shape).astype("float32")


X, W = exact(M, K), exact(K, N, seed=1)
EXPERTS, SLOTS = exact(E, K, N, seed=2), exact(E, ROWS, K, seed=3)


def summed(x, w):
    return jax.lax.psum(jax_w4a8.dot(x, w, block=32, out_dtype=jnp.float32), "a")


@pytest.mark.parametrize(
    ("f", "in_specs", "out_specs"),
    [
        pytest.param(jax_w4a8.dot, (P("a"), P()), P("a"), id="M"),
        pytest.param(jax_w4a8.dot, (P(), P("a")), P(None, "a"), id="N"),
        pytest.param(summed, (P(None, "a"), P(None, "a")), P(), id="K"),
    ],
)
def test_dense(backend, mesh, f, in_specs, out_specs):
    f = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=in_specs, out_specs=out_specs))
    w = jax_w4a8.quantize(W)
    np.testing.assert_array_equal(f(X, w), X @ W)
    if backend == "host":
        assert "@jax_w4a8_host_dense_v1" in f.lower(X, w).as_text()


def test_a_result_that_differs_between_devices_is_not_taken_for_the_same(backend, mesh):
    f = jax.shard_map(jax_w4a8.dot, mesh=mesh, in_specs=(P("a"), P()), out_specs=P())
    with pytest.raises(ValueError, match="out_specs"):
        jax.jit(f).lower(X, jax_w4a8.quantize(W))


def test_masked_over_experts(backend, mesh):
    spec = P("a")
    f = jax.shard_map(
        jax_w4a8.masked_grouped_dot, mesh=mesh, in_specs=(spec, spec, spec), out_specs=spec
    )
    expected = np.einsum("emk,ekn->emn", SLOTS, EXPERTS)
    expected *= (np.arange(ROWS) < COUNTS[:, None])[..., None]
    np.testing.assert_array_equal(jax.jit(f)(SLOTS, jax_w4a8.quantize(EXPERTS), COUNTS), expected)


def test_grouped_over_experts(backend, mesh):
    """Every device has two rows for its own expert, and one that belongs to none."""
    x = X.reshape(8, 2, K)
    f = jax.shard_map(
        lambda x, w, n: jax_w4a8.grouped_dot(x, w, n),
        mesh=mesh,
        in_specs=(P("a"), P("a"), P("a")),
        out_specs=P("a"),
    )
    sizes = np.array([2, 1, 0, 2, 2, 1, 0, 1], np.int32)
    expected = np.einsum("emk,ekn->emn", x, EXPERTS) * (np.arange(2) < sizes[:, None])[..., None]
    y = jax.jit(f)(X, jax_w4a8.quantize(EXPERTS), sizes)
    np.testing.assert_array_equal(y, expected.reshape(M, N))


def test_quantised_activations(backend, mesh):
    f = jax.shard_map(
        lambda x, w: jax_w4a8.dot(jax_w4a8.quantize_activation(x), w),
        mesh=mesh,
        in_specs=(P("a"), P()),
        out_specs=P("a"),
    )
    np.testing.assert_array_equal(jax.jit(f)(X, jax_w4a8.quantize(W)), X @ W)


@pytest.mark.parametrize(
    ("x_spec", "w_spec"), [pytest.param(P("a"), P(), id="M"), pytest.param(P(), P("a"), id="N")]
)
def test_gradient(backend, mesh, x_spec, w_spec):
    """Of a sum over all devices; with N split, each device adds its own part to the cotangent."""

    def loss(x, w):
        return jax.lax.psum(jnp.sum(jax_w4a8.dot(x, w) ** 2), "a")

    total = jax.shard_map(loss, mesh=mesh, in_specs=(x_spec, w_spec), out_specs=P())
    g = jax.jit(jax.grad(total))(X, jax_w4a8.quantize(W))
    np.testing.assert_array_equal(g, 2 * (X @ W) @ W.T)


def test_gradient_inside(backend, mesh):
    def f(x, w):
        return jax.grad(lambda x: jnp.sum(jax_w4a8.dot(x, w) ** 2))(x)

    f = jax.shard_map(f, mesh=mesh, in_specs=(P("a"), P()), out_specs=P("a"))
    np.testing.assert_array_equal(jax.jit(f)(X, jax_w4a8.quantize(W)), 2 * (X @ W) @ W.T)
