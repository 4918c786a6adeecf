"""``vmap`` over activations, weights, both and sizes, nested too: equal to a loop, bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_w4a8

B, M, K, N, E, ROWS = 3, 4, 64, 8, 2, 2


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def take(tree, i, axis=0):
    return jax.tree.map(lambda a: np.take(np.asarray(a), i, axis), tree)


def check(f, in_axes, *operands):
    """``vmap(f, in_axes)`` against the stack of its results one by one."""
    together = jax.jit(jax.vmap(f, in_axes))(*operands)
    one = jax.jit(f)
    singles = [
        one(
            *(
                o if axis is None else take(o, i, axis)
                for o, axis in zip(operands, in_axes, strict=True)
            )
        )
        for i in range(B)
    ]
    for i, single in enumerate(singles):
        for ours, theirs in zip(jax.tree.leaves(together), jax.tree.leaves(single), strict=True):
            np.testing.assert_array_equal(np.asarray(ours)[i], theirs)


@pytest.fixture(scope="module")
def weights():
    """``[B, K, N]``: B dense weights."""
    return jax_w4a8.quantize(normal(B, K, N, seed=1))


@pytest.fixture(scope="module")
def experts():
    """``[B, E, K, N]``: B times E experts."""
    return jax_w4a8.quantize(normal(B, E, K, N, seed=2))


SIZES = jnp.array([[1, 2], [0, 4], [3, 0]], jnp.int32)
COUNTS = jnp.array([[1, 2], [0, 2], [2, 0]], jnp.int32)


@pytest.mark.parametrize("in_axes", [(0, None), (None, 0), (0, 0), (1, None)])
def test_dense(backend, weights, in_axes):
    x = {0: normal(B, M, K), 1: normal(M, B, K), None: normal(M, K)}[in_axes[0]]
    check(jax_w4a8.dot, in_axes, x, weights if in_axes[1] == 0 else take(weights, 0))


@pytest.mark.parametrize("in_axes", [(0, None, None), (None, None, 0), (0, 0, 0)])
def test_grouped(backend, experts, in_axes):
    x = normal(M, K) if in_axes[0] is None else normal(B, M, K)
    w = take(experts, 0) if in_axes[1] is None else experts
    check(jax_w4a8.grouped_dot, in_axes, x, w, SIZES[1] if in_axes[2] is None else SIZES)


@pytest.mark.parametrize("in_axes", [(0, None, None), (0, None, 0), (None, 0, None), (0, 0, 0)])
def test_masked(backend, experts, in_axes):
    x = normal(E, ROWS, K) if in_axes[0] is None else normal(B, E, ROWS, K)
    w = take(experts, 0) if in_axes[1] is None else experts
    check(jax_w4a8.masked_grouped_dot, in_axes, x, w, COUNTS[0] if in_axes[2] is None else COUNTS)


def test_quantised_activations(backend, weights):
    def f(x, w):
        a = jax_w4a8.quantize_activation(x, block=32)
        return jax_w4a8.dot(a, w), a.codes.astype(jnp.float32), a.scales

    check(f, (0, 0), normal(B, M, K), weights)


def test_quantised_activations_shared_by_many_weights(backend, weights):
    a = jax_w4a8.quantize_activation(normal(M, K))
    check(lambda w: jax_w4a8.dot(a, w), (0,), weights)


def test_nested(backend, weights):
    """Every batch of activations by every weight, and pairs of them beside that."""
    x = normal(B, 2, M, K)
    check(jax.vmap(jax_w4a8.dot, (None, 0)), (0, None), x[:, 0], weights)
    check(jax.vmap(jax_w4a8.dot, (0, None)), (0, 0), x, weights)


def test_a_row_at_a_time(backend, weights):
    """A vector by a matrix, mapped over rows, is the product of the matrix."""
    w, x = take(weights, 0), normal(M, K)
    np.testing.assert_array_equal(jax.vmap(jax_w4a8.dot, (0, None))(x, w), jax_w4a8.dot(x, w))


def test_vmap_of_quantize(weights):
    mapped = jax.vmap(jax_w4a8.quantize)(normal(B, K, N, seed=1))
    assert mapped.shape == weights.shape
    for ours, theirs in zip(mapped.arrays, weights.arrays, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_nan_stays_in_its_own_row(backend, weights):
    x = normal(B, M, K)
    x[1, 2, 3] = np.nan
    y = jax.vmap(jax_w4a8.dot)(x, weights)
    expected = np.zeros((B, M, N), bool)
    expected[1, 2] = True
    np.testing.assert_array_equal(np.isnan(y), expected)


def test_stacked_products_run_as_one_call(backend, weights):
    """Mapped rows join one dense product, mapped weights one masked product."""
    if backend == "host":
        x = normal(B, M, K)
        over_rows = jax.jit(jax.vmap(jax_w4a8.dot, (0, None))).lower(x, take(weights, 0)).as_text()
        over_both = jax.jit(jax.vmap(jax_w4a8.dot)).lower(x, weights).as_text()
        assert over_rows.count("@jax_w4a8_host_dense_v1") == 1
        assert over_both.count("@jax_w4a8_host_masked_v1") == 1
        assert "stablehlo.while" not in over_rows + over_both
