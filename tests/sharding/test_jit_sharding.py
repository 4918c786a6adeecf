"""``jit`` with operands spread over eight devices: equal results, and what is communicated."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_w4a8

M, N, K, E, ROWS = 16, 32, 1024, 8, 3
SIZES = np.array([1, 0, 2, 3, 4, 0, 0, 5], np.int32)
COUNTS = np.array([3, 0, 1, 2, 3, 3, 0, 1], np.int32)


def mesh(*shape):
    names = ("a", "b")[: len(shape)]
    return jax.make_mesh(shape, names, axis_types=(AxisType.Auto,) * len(shape))


def exact(*shape, seed=0):
    """Small numbers whose products are sums without rounding, in every order."""
    return np.random.default_rng(seed).choice([-1.0, -0.5, 0.5, 1.0, 2.0], shape).astype("float32")


X, W = exact(M, K), exact(K, N, seed=1)
EXPERTS, SLOTS = exact(E, K, N, seed=2), exact(E, ROWS, K, seed=3)


def grouped():
    """The grouped product in NumPy."""
    y = np.zeros((M, N), np.float32)
    ends = np.cumsum(SIZES)
    for e, (start, end) in enumerate(zip(ends - SIZES, ends, strict=True)):
        y[start:end] = X[start:end] @ EXPERTS[e]
    return y


def masked():
    """The masked product in NumPy."""
    return (
        np.einsum("emk,ekn->emn", SLOTS, EXPERTS) * (np.arange(ROWS) < COUNTS[:, None])[..., None]
    )


def spread(mesh, operand, spec):
    return jax.tree.map(lambda a: jax.device_put(a, NamedSharding(mesh, spec)), operand)


def run(f, mesh, *operands_and_specs):
    """The result, and the (type, name) of each collective of the compiled program."""
    operands = [spread(mesh, o, s) for o, s in operands_and_specs]
    compiled = jax.jit(f).lower(*operands).compile()
    collective = (
        r"= (\S+?)(?:\{[\d,]*\})? "
        r"(all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(?:-start)?\("
    )
    return compiled(*operands), re.findall(collective, compiled.as_text())


@pytest.fixture(scope="module")
def w():
    return jax_w4a8.quantize(W)


@pytest.fixture(scope="module")
def experts():
    return jax_w4a8.quantize(EXPERTS)


SUM = (f"f32[{M},{N}]", "all-reduce")


@pytest.mark.parametrize(
    ("x_spec", "w_spec", "y_spec", "collectives"),
    [
        pytest.param(P("a"), P(), P("a"), [], id="M"),
        pytest.param(P(), P("a"), P(None, "a"), [], id="N"),
        pytest.param(P(None, "a"), P(None, "a"), P(), [SUM], id="K"),
    ],
)
def test_dense(backend, w, x_spec, w_spec, y_spec, collectives):
    y, seen = run(jax_w4a8.dot, mesh(8), (X, x_spec), (w, w_spec))
    assert seen == collectives
    assert y.sharding.is_equivalent_to(NamedSharding(y.sharding.mesh, y_spec), 2)
    np.testing.assert_array_equal(y, X @ W)


def test_rows_and_columns_over_two_axes(backend, w):
    y, seen = run(jax_w4a8.dot, mesh(4, 2), (X, P("a")), (w, P("b")))
    assert seen == []
    np.testing.assert_array_equal(y, X @ W)


def test_rows_and_contraction_over_two_axes(backend, w):
    y, seen = run(jax_w4a8.dot, mesh(2, 4), (X, P("a", "b")), (w, P(None, "b")))
    assert seen == [(f"f32[{M // 2},{N}]", "all-reduce")]
    np.testing.assert_array_equal(y, X @ W)


def test_partial_sums_are_float32_also_for_a_bfloat16_result(backend, w):
    """In bfloat16 the parts 257 and -256 of a sum would be 256 and -256."""
    x, kernel = np.zeros((1, K), np.float32), np.zeros((K, 8), np.float32)
    x[0, : 2 * 128 + 1 : 128] = 256, 1, -256
    x[0, 127], kernel[127] = 1, 1
    kernel[: 2 * 128 + 1 : 128] = 1

    def f(x, w):
        return jax_w4a8.dot(x, w, out_dtype=jnp.bfloat16)

    spec = P(None, "a")
    y, seen = run(f, mesh(8), (x, spec), (jax_w4a8.quantize(kernel), spec))
    assert seen == [("f32[1,8]", "all-reduce")]
    np.testing.assert_array_equal(np.asarray(y, np.float32), np.full((1, 8), 2.0))


def test_a_contraction_that_cuts_through_blocks_is_right(backend):
    """Pieces of 96 are no whole blocks of 128 activations."""
    x, kernel = exact(M, 768, seed=4), exact(768, N, seed=5)
    spec = P(None, "a")
    y, _ = run(jax_w4a8.dot, mesh(8), (x, spec), (jax_w4a8.quantize(kernel), spec))
    np.testing.assert_array_equal(y, x @ kernel)


def test_one_scale_a_row_needs_the_whole_row(backend, w):
    x = X.copy()
    x[:, :128] *= 2.0**-20  # rounds to zero beside the rest of the row, and only then
    spec = P(None, "a")
    f = lambda x, w: jax_w4a8.dot(x, w, block="row")  # noqa: E731
    y, _ = run(f, mesh(8), (x, spec), (w, spec))
    np.testing.assert_array_equal(y, X[:, 128:] @ W[128:])


@pytest.mark.parametrize(
    ("x_spec", "w_spec", "collectives"),
    [
        pytest.param(P("a"), P(), [], id="M"),
        pytest.param(P(None, "a"), P(None, "a"), [SUM], id="K"),
    ],
)
def test_quantised_activations(backend, w, x_spec, w_spec, collectives):
    def f(x, w):
        return jax_w4a8.dot(jax_w4a8.quantize_activation(x), w)

    y, seen = run(f, mesh(8), (X, x_spec), (w, w_spec))
    assert seen == collectives
    np.testing.assert_array_equal(y, X @ W)


@pytest.mark.parametrize(
    ("x_spec", "w_spec", "collectives"),
    [
        pytest.param(P(), P(None, "a"), [], id="N"),
        pytest.param(P(), P("a"), [SUM], id="experts"),
        pytest.param(P(None, "a"), P(None, None, "a"), [SUM], id="K"),
    ],
)
def test_grouped(backend, experts, x_spec, w_spec, collectives):
    y, seen = run(jax_w4a8.grouped_dot, mesh(8), (X, x_spec), (experts, w_spec), (SIZES, P()))
    assert seen == collectives
    np.testing.assert_array_equal(y, grouped())


def test_grouped_over_experts_and_columns_with_sizes_that_do_not_fit(backend, experts):
    """Negative sizes count as zero, the last groups are cut, and NaN rows belong to no group."""
    x = np.concatenate([X[:10], np.full((6, K), np.nan, np.float32)])
    sizes = np.array([2, -7, 3, 0, 4, 1, 0, 0], np.int32)
    y, seen = run(jax_w4a8.grouped_dot, mesh(4, 2), (x, P()), (experts, P("a", "b")), (sizes, P()))
    assert seen == [(f"f32[{M},{N // 2}]", "all-reduce")]
    expected = np.zeros((M, N), np.float32)
    for rows, e in ((slice(0, 2), 0), (slice(2, 5), 2), (slice(5, 9), 4), (slice(9, 10), 5)):
        expected[rows] = X[rows] @ EXPERTS[e]
    np.testing.assert_array_equal(y, expected)
    sizes = np.array([2, 0, 3, 0, 4, 20, 5, 6], np.int32)
    y, _ = run(jax_w4a8.grouped_dot, mesh(4, 2), (X, P()), (experts, P("a", "b")), (sizes, P()))
    expected[9:] = X[9:] @ EXPERTS[5]
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize(
    ("x_spec", "w_spec", "counts_spec", "collectives"),
    [
        pytest.param(P(), P(None, "a"), P(), [], id="N"),
        pytest.param(P("a"), P("a"), P("a"), [], id="experts"),
        pytest.param(
            P(None, None, "a"),
            P(None, None, "a"),
            P(),
            [(f"f32[{E},{ROWS},{N}]", "all-reduce")],
            id="K",
        ),
    ],
)
def test_masked(backend, experts, x_spec, w_spec, counts_spec, collectives):
    y, seen = run(
        jax_w4a8.masked_grouped_dot,
        mesh(8),
        (SLOTS, x_spec),
        (experts, w_spec),
        (COUNTS, counts_spec),
    )
    assert seen == collectives
    np.testing.assert_array_equal(y, masked())


def test_gradient_with_sharded_rows(backend, w):
    def f(x, w):
        return jax.grad(lambda x: jnp.sum(jax_w4a8.dot(x, w) ** 2))(x)

    y, seen = run(f, mesh(8), (X[:, :64], P("a")), (jax_w4a8.quantize(W[:64]), P()))
    assert seen == []
    np.testing.assert_array_equal(y, 2 * (X[:, :64] @ W[:64]) @ W[:64].T)


def test_vmap_over_sharded_weights(backend, experts):
    """A batch of products becomes a masked one, split along the batch."""
    f = jax.vmap(jax_w4a8.dot)
    y, seen = run(f, mesh(8), (SLOTS, P("a")), (experts, P("a")))
    assert seen == []
    np.testing.assert_array_equal(y, np.einsum("emk,ekn->emn", SLOTS, EXPERTS))
