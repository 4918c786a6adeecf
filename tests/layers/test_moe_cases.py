"""What goes wrong with experts elsewhere: empty groups, garbage rows, skew."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_w4a8
from jax_w4a8.layers.experts import Experts, MoEConfig, run_experts
from tests.layers import exact

BACKENDS = ("xla", "host")


@pytest.fixture(params=BACKENDS)
def backend(request):
    with jax_w4a8.use_backend(request.param):
        yield request.param


def experts(count, k, n):
    kernels = np.stack([exact.kernel(k, n, seed) for seed in range(count)])
    return kernels, jax_w4a8.quantize(kernels)


SIZES = {
    "all empty": [0, 0, 0],
    "first has all": [128, 0, 0],
    "last has all": [0, 0, 128],
    "middle empty": [1, 0, 127],
    "primes": [13, 31, 83],
    "rows left over": [7, 0, 11],
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes_of_groups(name, backend):
    sizes = np.array(SIZES[name], np.int32)
    kernels, w = experts(3, 64, 24)
    x = exact.inputs(128, 64)
    y = jax.jit(lambda *a: jax_w4a8.grouped_dot(*a))(x, w, sizes)
    expected = np.zeros((128, 24))
    ends = np.cumsum(sizes)
    for e in range(3):
        rows = slice(ends[e] - sizes[e], ends[e])
        expected[rows] = exact.product(x[rows], kernels[e])
    np.testing.assert_array_equal(y, expected.astype(np.float32))


@pytest.mark.parametrize("form", ["grouped", "masked"])
def test_no_rows_at_all(form, backend):
    _, w = experts(3, 64, 24)
    op, shape = {
        "grouped": (jax_w4a8.grouped_dot, (0, 64)),
        "masked": (jax_w4a8.masked_grouped_dot, (3, 0, 64)),
    }[form]
    y = jax.jit(lambda *a: op(*a))(np.zeros(shape, np.float32), w, np.zeros(3, np.int32))
    assert y.shape == (*shape[:-1], 24)


def test_garbage_past_the_counts_changes_no_bit(backend):
    _, w = experts(3, 96, 24)
    counts = np.array([0, 5, 16], np.int32)
    a = jax_w4a8.quantize_activation(
        np.random.default_rng(0).normal(size=(3, 16, 96)).astype(np.float32), block=32
    )
    past = jnp.arange(16)[None, :, None] >= counts[:, None, None]
    nan = jnp.full((), jnp.nan, jnp.float8_e4m3fn)
    garbage = jax.tree.unflatten(
        jax.tree.structure(a),
        [jnp.where(past, nan, a.codes), jnp.where(past, jnp.uint8(255), a.scales)],
    )
    f = jax.jit(lambda *a: jax_w4a8.masked_grouped_dot(*a))
    clean, dirty = np.asarray(f(a, w, counts)), np.asarray(f(garbage, w, counts))
    np.testing.assert_array_equal(clean.view(np.uint32), dirty.view(np.uint32))
    for e, count in enumerate(counts):
        assert not np.any(dirty[e, count:])
        assert np.all(np.any(dirty[e, :count], axis=-1))


def biased_experts(count=4, features=32, hidden=32, out=8):
    """Experts with zero weights; down's bias is e + n / 8."""
    zeros = [np.zeros((count, *s), np.float32) for s in ((features, 2 * hidden), (hidden, out))]
    bias = np.arange(count)[:, None] + np.arange(out) / 8
    return Experts(*map(jax_w4a8.quantize, zeros), None, jnp.asarray(bias, jnp.float32))


@pytest.mark.parametrize("form", ["contiguous", "masked"])
def test_of_zero_weights_the_bias_comes_out_exactly(form, backend):
    ids = np.array([[2], [0], [-1], [3], [2], [1]])
    config = MoEConfig(top_k=1, form=form)
    x = np.random.default_rng(0).normal(size=(6, 32)).astype(np.float32)
    x[2] = np.nan
    run = jax.jit(lambda x, w, i, e: run_experts(x, w, i, e, config))
    y = run(x, np.ones((6, 1), np.float32), ids, biased_experts())
    expected = ids + np.arange(8) / 8
    expected[2] = 0
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("form", ["contiguous", "masked"])
def test_skewed_routing_drops_no_token(form, backend):
    ids = np.full((50, 2), 3)
    ids[:, 1] = np.where(np.arange(50) == 17, 0, -1)
    config = MoEConfig(top_k=2, form=form)
    run = jax.jit(lambda x, w, i, e: run_experts(x, w, i, e, config))
    y = run(np.ones((50, 32), np.float32), np.ones((50, 2), np.float32), ids, biased_experts())
    expected = np.tile(3 + np.arange(8) / 8, (50, 1))
    expected[17] += np.arange(8) / 8
    np.testing.assert_array_equal(y, expected)


def test_memory_is_that_of_the_rows_which_the_form_has():
    """As documented: T * top_k rows in the contiguous form, E * T in the masked one."""
    count, features, tokens, k = 16, 256, 128, 2
    shapes = [(count, features, 2 * 32), (count, 32, features)]
    packed = Experts(*(jax_w4a8.quantize(np.ones(s, np.float32)) for s in shapes))
    x = np.ones((tokens, features), np.float32)
    ids = np.zeros((tokens, k), np.int32)
    peak = {}
    for form in ("contiguous", "masked"):
        config = MoEConfig(top_k=k, form=form)
        with jax_w4a8.use_backend("host"):
            compiled = (
                jax.jit(lambda x, w, i, e, c=config: run_experts(x, w, i, e, c))
                .lower(x, np.ones((tokens, k), np.float32), ids, packed)
                .compile()
            )
        peak[form] = compiled.memory_analysis().temp_size_in_bytes
    row = 4 * features
    assert tokens * k * row <= peak["contiguous"] <= 3 * tokens * k * row
    assert count * tokens * row <= peak["masked"] <= 3 * count * tokens * row
