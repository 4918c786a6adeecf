"""Gradients under ``vmap``, ``scan`` over stacked weights, ``remat`` and ``jit``."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_w4a8

B, M, K, N, E = 3, 4, 32, 32, 2
SIZES = np.array([1, 2], np.int32)


def exact(*shape, seed=0):
    return np.random.default_rng(seed).choice([-1.0, 0.5, 1.0, 2.0], shape).astype("float32")


X, KERNELS = exact(B, M, K), exact(B, K, N, seed=1)


@pytest.fixture(scope="module")
def weights():
    return jax_w4a8.quantize(KERNELS)


def first(weights):
    return jax.tree.map(lambda a: a[0], weights)


def loss(x, w):
    """Half the squared length of the product: its gradient is ``(x @ w) @ w^T``."""
    return jnp.sum(jax_w4a8.dot(x, w) ** 2) / 2


def test_grad_of_vmap(backend, weights):
    g = jax.jit(jax.grad(lambda x: jnp.sum(jax.vmap(loss)(x, weights))))(X)
    np.testing.assert_array_equal(g, (X @ KERNELS) @ KERNELS.transpose(0, 2, 1))


def test_vmap_of_grad(backend, weights):
    g = jax.jit(jax.vmap(jax.grad(loss), (0, None)))(X, first(weights))
    np.testing.assert_array_equal(g, (X @ KERNELS[0]) @ KERNELS[0].T)


def test_vmap_of_grad_of_a_grouped_product(backend):
    experts = exact(E, K, N, seed=2)
    w = jax_w4a8.quantize(experts)

    def total(x):
        return jnp.sum(jax_w4a8.grouped_dot(x, w, SIZES) ** 2) / 2

    expected = np.zeros_like(X)
    expected[:, :1] = (X[:, :1] @ experts[0]) @ experts[0].T
    expected[:, 1:3] = (X[:, 1:3] @ experts[1]) @ experts[1].T
    np.testing.assert_array_equal(jax.jit(jax.vmap(jax.grad(total)))(X), expected)


def test_vmap_of_grad_of_a_masked_product(backend):
    experts = exact(E, K, N, seed=2)
    w, x = jax_w4a8.quantize(experts), exact(B, E, 2, K, seed=3)

    def total(x):
        return jnp.sum(jax_w4a8.masked_grouped_dot(x, w, SIZES) ** 2) / 2

    expected = np.einsum("bemk,ekn->bemn", x, experts)
    expected = np.einsum("bemn,ekn->bemk", expected, experts)
    expected *= (np.arange(2) < SIZES[:, None])[..., None]
    np.testing.assert_array_equal(jax.jit(jax.vmap(jax.grad(total)))(x), expected)


def test_value_and_grad_under_jit(backend, weights):
    value, g = jax.jit(jax.value_and_grad(loss))(X[0], first(weights))
    y = X[0] @ KERNELS[0]
    assert value == np.sum(np.float64(y) ** 2) / 2
    np.testing.assert_array_equal(g, y @ KERNELS[0].T)


def layer(x, w):
    """One layer whose values stay small powers of two, so that every product is exact."""
    return jnp.sign(jax_w4a8.dot(x, w)) + x / 2


def layer_in_numpy(x, kernel):
    return np.sign(x @ kernel) + x / 2


def test_scan_over_stacked_weights(backend, weights):
    last, each = jax.jit(
        lambda x: jax.lax.scan(lambda x, w: (layer(x, w), jnp.sum(x)), x, weights)
    )(X[0])
    expected = X[0]
    for i in range(B):
        assert each[i] == expected.sum()
        expected = layer_in_numpy(expected, KERNELS[i])
    np.testing.assert_array_equal(last, expected)


def linear_chain(x, weights, step):
    """Products one after the other, each made smaller by an exact power of two."""
    last, _ = jax.lax.scan(lambda x, w: (step(x, w) * 2.0**-6, None), x, weights)
    return jnp.sum(last)


@pytest.mark.parametrize("remat", [False, True])
def test_gradient_through_a_scan(backend, weights, remat):
    """Linear, so that the gradient is the product of the transposed kernels, whatever x is."""
    step = jax.checkpoint(jax_w4a8.dot) if remat else jax_w4a8.dot
    g = jax.jit(jax.grad(lambda x: linear_chain(x, weights, step)))(X[0])
    expected = np.ones((M, N))
    for kernel in KERNELS[::-1]:
        expected = expected @ np.float64(kernel).T * 2.0**-6
    np.testing.assert_array_equal(g, expected)


def test_remat_computes_the_product_again(backend, weights):
    """Once for the value, and once more for the derivative of what follows it."""

    def f(x, w):
        return jnp.sum(jnp.sin(jax_w4a8.dot(x, w)))

    w, x = first(weights), X[0]
    kept, again = (jax.jit(jax.value_and_grad(g)) for g in (f, jax.checkpoint(f)))
    for ours, theirs in zip(again(x, w), kept(x, w), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)
    if backend == "host":
        calls = [g.lower(x, w).as_text().count("@jax_w4a8_host_dense_v1") for g in (kept, again)]
        assert calls == [1, 2]


def test_remat_of_grouped_products_with_a_policy_that_saves_nothing(backend):
    experts = exact(E, K, N, seed=2)
    w, x = jax_w4a8.quantize(experts), exact(3, K)

    def f(x):
        slots = jnp.stack([x[:2], x[1:]])
        grouped = jax_w4a8.grouped_dot(x, w, SIZES)
        return jnp.sum(grouped**2) + jnp.sum(jax_w4a8.masked_grouped_dot(slots, w, SIZES) ** 2)

    nothing = jax.checkpoint(f, policy=jax.checkpoint_policies.nothing_saveable)
    # Rows and their experts are the same in both products.
    squares = experts @ experts.transpose(0, 2, 1)
    expected = 4 * np.concatenate([x[:1] @ squares[0], x[1:] @ squares[1]])
    np.testing.assert_array_equal(jax.jit(jax.grad(nothing))(x), expected)


def test_cond_and_while(backend, weights):
    w, x = first(weights), X[0]

    @jax.jit
    def f(x, n):
        x = jax.lax.cond(n > 1, lambda x: layer(x, w), lambda x: x, x)
        return jax.lax.fori_loop(0, n, lambda i, x: layer(x, w), x)

    expected = x
    for _ in range(3):
        expected = layer_in_numpy(expected, KERNELS[0])
    np.testing.assert_array_equal(f(x, 2), expected)


def test_jvp_says_that_only_reverse_mode_is_there(backend, weights):
    with pytest.raises(TypeError, match="custom_vjp"):
        jax.jvp(lambda x: jax_w4a8.dot(x, first(weights)), (X[0],), (X[0],))


def test_weights_are_leaves_like_any_other(weights):
    """Stacked, indexed, mapped over and donated as a pytree."""
    stacked = jax.tree.map(lambda *a: jnp.stack(a), first(weights), first(weights))
    assert stacked.shape == (2, K, N)
    again = jax.tree.unflatten(*reversed(jax.tree.flatten(weights)))
    assert repr(again) == repr(weights)
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(weights)]
    assert paths == [".codes", ".scales"]
