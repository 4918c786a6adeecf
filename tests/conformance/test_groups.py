"""Grouped and masked products of every backend that serves on a CPU, against float64."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_w4a8
from jax_w4a8 import QuantizedActivation
from tests import reference
from tests.conformance.operands import quantized_values, random_weight, values_of

N, K = 24, 96


@functools.partial(jax.jit, static_argnames=("block", "backend"))
def grouped(x, w, sizes, block=None, backend=None):
    return jax_w4a8.grouped_dot(x, w, sizes, block=block)


@functools.partial(jax.jit, static_argnames=("block", "backend"))
def masked(x, w, counts, block=None, backend=None):
    return jax_w4a8.masked_grouped_dot(x, w, counts, block=block)


def group_of_row(sizes, m):
    """Which group each of m rows belongs to, -1 for none: jax.lax.ragged_dot's meaning."""
    groups = np.repeat(np.arange(len(sizes)), np.maximum(sizes, 0))[:m]
    return np.concatenate([groups, np.full(m - len(groups), -1)])


def group_of_masked_row(counts, rows):
    """Which group each row belongs to, groups of ``rows`` laid end to end; -1 past a count."""
    used = np.arange(rows) < counts[:, None]
    return np.where(used, np.arange(len(counts))[:, None], -1).ravel()


def expected(values, group, kernels):
    """In float64: rows times their groups' kernels, and the sums of the terms' magnitudes."""
    y, terms = np.zeros((len(values), N)), np.zeros((len(values), N))
    for e in np.unique(group[group >= 0]):
        rows = group == e
        y[rows], terms[rows] = reference.product(values[rows], kernels[e])
    return y, terms


def draw_sizes(rng, groups, m):
    """Sizes of one of the kinds that models meet."""
    kind = rng.integers(6)
    if kind == 0:
        return np.zeros(groups, np.int64)
    if kind == 1:
        return m * (np.arange(groups) == rng.integers(groups))
    if kind == 2:
        return rng.choice([0, 1, 2, 3, 5, 7, 11, 13, 17], groups)
    if kind == 3:
        return rng.integers(-3, 4, groups)
    if kind == 4:
        return rng.integers(0, 2 * m // groups + 2, groups)
    return rng.multinomial(m, rng.dirichlet(np.full(groups, 0.3)))


@pytest.mark.parametrize("groups", [1, 2, 5, 32, 128])
def test_forty_draws_of_sizes(backend, groups):
    m = 130
    rng = np.random.default_rng(groups)
    w = random_weight(rng, (groups,), N, K)
    kernels = values_of(w)
    for _ in range(40):
        sizes = draw_sizes(rng, groups, m)
        group = group_of_row(sizes, m)
        x = rng.normal(size=(m, K)).astype(np.float32)
        values = quantized_values(x, 128)
        # What no group has may be anything.
        x[group < 0] = rng.choice([np.nan, np.inf, 3e38])
        y = grouped(x, w, jnp.asarray(sizes, jnp.int32), backend=backend)
        exact, terms = expected(values, group, kernels)
        reference.assert_within_bound(y, exact, terms)
        assert (np.asarray(y)[group < 0] == 0).all()


@pytest.mark.parametrize("groups", [1, 2, 5, 32, 128])
def test_forty_draws_of_counts(backend, groups):
    rows = 7
    rng = np.random.default_rng(groups)
    w = random_weight(rng, (groups,), N, K)
    kernels = values_of(w)
    for _ in range(40):
        counts = draw_sizes(rng, groups, rows * groups)
        group = group_of_masked_row(counts, rows)
        x = rng.normal(size=(groups, rows, K)).astype(np.float32)
        values = quantized_values(x, 128).reshape(-1, K)
        x.reshape(-1, K)[group < 0] = rng.choice([np.nan, -np.inf, 1e-30, 3e38])
        y = masked(x, w, jnp.asarray(counts, jnp.int32), backend=backend)
        flat = np.asarray(y).reshape(-1, N)
        exact, terms = expected(values, group, kernels)
        reference.assert_within_bound(flat, exact, terms)
        assert (flat[group < 0] == 0).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("out", ["float32", "bfloat16", "float16"])
def test_dtypes(backend, dtype, out):
    rng = np.random.default_rng(0)
    w = random_weight(rng, (4,), N, K)
    sizes, counts = np.array([7, 0, 1, 12]), np.array([5, 0, 2, 1])
    x = rng.normal(size=(25, K)).astype(jnp.dtype(dtype))
    y = jax_w4a8.grouped_dot(x, w, jnp.asarray(sizes, jnp.int32), out_dtype=out)
    assert y.dtype == out
    exact, terms = expected(quantized_values(x, 128), group_of_row(sizes, 25), values_of(w))
    reference.assert_within_bound(y, exact, terms)
    x = rng.normal(size=(4, 5, K)).astype(jnp.dtype(dtype))
    y = jax_w4a8.masked_grouped_dot(x, w, jnp.asarray(counts, jnp.int32), out_dtype=out)
    assert y.dtype == out
    values = quantized_values(x, 128).reshape(-1, K)
    exact, terms = expected(values, group_of_masked_row(counts, 5), values_of(w))
    reference.assert_within_bound(np.asarray(y).reshape(-1, N), exact, terms)


@pytest.mark.parametrize("block", [32, 128, "row"])
@pytest.mark.parametrize("k", [48, 416])
def test_blocks_and_padding(backend, block, k):
    rng = np.random.default_rng(k)
    sizes = np.array([7, 0, 1, 12])
    w = random_weight(rng, (4,), N, k)
    x = rng.normal(size=(25, k)).astype(np.float32)
    y = grouped(x, w, jnp.asarray(sizes, jnp.int32), block=block, backend=backend)
    exact, terms = expected(quantized_values(x, block), group_of_row(sizes, 25), values_of(w))
    reference.assert_within_bound(y, exact, terms)


@pytest.mark.parametrize("sizes", [[0, 0, 0], [6, 0, 0], [0, 0, 6], [1, 0, 127]])
def test_no_rows_and_one_group_with_everything(backend, sizes):
    m = max(sum(sizes), 6)
    rng = np.random.default_rng(0)
    w = random_weight(rng, (3,), N, K)
    x = rng.normal(size=(m, K)).astype(np.float32)
    y = grouped(x, w, jnp.asarray(sizes, jnp.int32), backend=backend)
    exact, terms = expected(quantized_values(x, 128), group_of_row(sizes, m), values_of(w))
    reference.assert_within_bound(y, exact, terms)
    none = grouped(x[:0], w, jnp.zeros(3, jnp.int32), backend=backend)
    assert none.shape == (0, N)
    nobody = masked(np.zeros((3, 0, K), np.float32), w, jnp.zeros(3, jnp.int32), backend=backend)
    assert nobody.shape == (3, 0, N)


@pytest.mark.parametrize(
    ("sizes", "meant"),
    [
        (np.array([2**31, 0, 0]), [9, 0, 0]),
        (np.array([2**32 + 1, 0, 0]), [9, 0, 0]),
        (np.array([2, 2**31, 1], np.uint32), [2, 7, 0]),
        (np.array([2, -(2**40), 5]), [2, 0, 5]),
        (np.array([200, 0, 0], np.uint8), [9, 0, 0]),
        (np.array([2, -1, 3], np.int8), [2, 0, 3]),
    ],
)
def test_sizes_that_int32_does_not_hold(backend, sizes, meant):
    """More rows than there are, or fewer than none; never some other number."""
    rng = np.random.default_rng(0)
    w = random_weight(rng, (3,), N, K)
    x = rng.normal(size=(9, K)).astype(np.float32)
    y = jax_w4a8.grouped_dot(x, w, sizes)
    same = jax_w4a8.grouped_dot(x, w, np.array(meant, np.int32))
    np.testing.assert_array_equal(np.asarray(y), np.asarray(same))


@pytest.mark.parametrize("kind", ["grouped", "masked"])
def test_nan_codes_and_scales_past_the_counts_change_no_bit(backend, kind):
    groups, rows = 4, 9
    rng = np.random.default_rng(0)
    w = random_weight(rng, (groups,), N, K)
    shape = (groups, rows, K) if kind == "masked" else (groups * rows, K)
    a = jax_w4a8.quantize_activation(rng.normal(size=shape).astype(np.float32), block=32)
    sizes = np.array([3, 0, 9, 1])
    if kind == "masked":
        used = np.arange(rows) < sizes[:, None]
    else:
        used = np.arange(groups * rows) < sizes.sum()
    codes = np.where(used[..., None], np.asarray(a.codes).view(np.uint8), 0x7F).astype(np.uint8)
    scales = np.where(used[..., None], np.asarray(a.scales), 255).astype(np.uint8)
    dirty = QuantizedActivation(
        jax.lax.bitcast_convert_type(codes, jnp.float8_e4m3fn), jnp.asarray(scales), 32
    )
    f = {"grouped": grouped, "masked": masked}[kind]
    counts = jnp.asarray(sizes, jnp.int32)
    y, clean = (np.asarray(f(v, w, counts, backend=backend)) for v in (dirty, a))
    np.testing.assert_array_equal(y.view(np.uint32), clean.view(np.uint32))
    assert (y[~used] == 0).all()
