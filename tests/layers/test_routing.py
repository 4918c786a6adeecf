"""Choosing experts, bringing rows together and taking them apart."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_w4a8
from jax_w4a8.layers.routing import permute, top_k, unpermute
from tests.layers import moe_loop

SCORES = ("softmax", "sigmoid", "sqrt_softplus")


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("renormalize", [False, True])
def test_top_k_is_the_definition(score, biased, renormalize):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(3, 5, 16)).astype(np.float32) * 3
    bias = rng.normal(size=16).astype(np.float32) if biased else None
    weights, ids = top_k(logits, 4, score=score, bias=bias, renormalize=renormalize, scale=2.5)
    assert weights.dtype == jnp.float32
    assert ids.dtype == jnp.int32
    for at in np.ndindex(3, 5):
        expected, expected_ids = moe_loop.top_k(
            logits[at], 4, score, 0.0 if bias is None else bias, renormalize, 2.5
        )
        np.testing.assert_array_equal(ids[at], expected_ids)
        np.testing.assert_allclose(weights[at], expected, rtol=2e-6)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("bias", [None, 0.25])
@pytest.mark.parametrize("zero", [0.0, -0.0, 3.5, -1e30])
def test_of_equal_logits_the_lowest_ids_win(score, bias, zero):
    logits = np.full((2, 8), zero, np.float32)
    logits[0, 3] = abs(zero) if zero == 0 else zero
    bias = None if bias is None else np.full(8, bias, np.float32)
    _, ids = jax.jit(lambda x: top_k(x, 3, score=score, bias=bias))(logits)
    np.testing.assert_array_equal(ids, [[0, 1, 2]] * 2)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("rest", [-np.inf, np.nan, -np.nan, np.inf])
def test_ids_are_distinct_when_only_one_logit_is_finite(score, biased, rest):
    logits = np.full(8, rest, np.float32)
    logits[5] = 1
    weights, ids = top_k(logits, 4, score=score, bias=np.zeros(8) if biased else None)
    assert len(set(np.asarray(ids).tolist())) == 4
    assert np.all((np.asarray(ids) >= 0) & (np.asarray(ids) < 8))
    if rest == -np.inf:
        np.testing.assert_array_equal(ids, [5, 0, 1, 2])
        np.testing.assert_array_equal(weights, [1, 0, 0, 0])
    else:
        assert np.isnan(weights).any() or (score == "sigmoid" and rest == np.inf)


def test_weights_of_far_scores_are_still_their_quotients():
    logits = np.array([-200.0, -201.0, -202.0], np.float32)
    bias = np.array([0.0, 1.0, 2.0], np.float32)
    for score, factor in (("softmax", 1), ("sigmoid", 1), ("sqrt_softplus", 2)):
        weights, ids = top_k(logits, 2, score=score, bias=bias)
        np.testing.assert_array_equal(ids, [2, 1])
        low = 1 / (1 + np.exp(1 / factor))
        np.testing.assert_allclose(weights, [low, 1 - low], rtol=1e-5)


@pytest.mark.parametrize("score", SCORES)
def test_gradients_of_the_weights(score):
    logits = np.random.default_rng(1).normal(size=6)
    probe = np.array([1.0, -2.0, 0.5])

    def loss(x):
        return jnp.sum(top_k(x, 3, score=score)[0] * probe)

    gradient = jax.grad(loss)(jnp.asarray(logits, jnp.float32))
    step = 1e-6
    for i in range(6):
        d = step * np.eye(6)[i]
        ends = [np.sum(moe_loop.top_k(logits + s * d, 3, score)[0] * probe) for s in (1, -1)]
        np.testing.assert_allclose(gradient[i], (ends[0] - ends[1]) / (2 * step), atol=1e-5)
    extreme = jax.grad(loss)(jnp.array([-np.inf, -500.0, 80.0, -np.inf, 0.0, -np.inf]))
    assert np.all(np.isfinite(extreme))


@pytest.mark.parametrize(
    ("wrong", "error", "word"),
    [
        ({"k": 0}, ValueError, "top_k"),
        ({"k": 5}, ValueError, "top_k"),
        ({"k": 2.0}, ValueError, "top_k"),
        ({"score": "tanh"}, ValueError, "score"),
        ({"bias": np.zeros(3)}, ValueError, "bias"),
        ({"logits": np.zeros((2, 4), np.int32)}, TypeError, "logits"),
    ],
)
def test_top_k_refuses(wrong, error, word):
    arguments = {"logits": np.zeros((2, 4), np.float32), "k": 2} | wrong
    with pytest.raises(error, match=word):
        top_k(arguments.pop("logits"), arguments.pop("k"), **arguments)


def groups(ids, experts):
    """For each expert its (token, slot) pairs, in the order of the tokens."""
    return [[(t, s) for (t, s), e in np.ndenumerate(ids) if e == x] for x in range(experts)]


ROUTINGS = {
    "ordinary": np.random.default_rng(2).integers(0, 7, (13, 3)),
    "with none": np.random.default_rng(3).integers(-1, 7, (13, 3)),
    "one expert": np.full((13, 1), 4),
    "all none": np.full((13, 3), -1),
    "no tokens": np.zeros((0, 3), int),
    "one token": np.array([[6, 0, 3]]),
}


@pytest.mark.parametrize("name", ROUTINGS)
@pytest.mark.parametrize("masked", [False, True])
def test_permute_brings_each_experts_rows_together(name, masked):
    ids, experts = ROUTINGS[name], 7
    x = np.arange(ids.shape[0], dtype=np.float32)[:, None] + 100
    capacity = ids.size if masked else None
    rows, permutation = jax.jit(lambda x, i: permute(x, i, experts, capacity=capacity))(x, ids)
    expected = groups(ids, experts)
    np.testing.assert_array_equal(permutation.counts, [len(g) for g in expected])
    rows = np.asarray(rows).reshape(-1)
    starts = np.arange(experts) * ids.size if masked else np.cumsum([0, *map(len, expected)])
    for expert, pairs in enumerate(expected):
        for place, (t, s) in enumerate(pairs):
            row = starts[expert] + place
            assert rows[row] == t + 100
            assert permutation.rows[t, s] == row
    assert np.all((np.asarray(permutation.rows) >= 0) == (ids >= 0))


@pytest.mark.parametrize("name", ROUTINGS)
@pytest.mark.parametrize("masked", [False, True])
def test_unpermute_is_the_weighted_sum(name, masked):
    ids, experts = ROUTINGS[name], 7
    rng = np.random.default_rng(4)
    x = rng.normal(size=(ids.shape[0], 5)).astype(np.float32)
    weights = rng.normal(size=ids.shape).astype(np.float32)

    @jax.jit
    def f(x, ids, weights):
        rows, permutation = permute(x, ids, experts, capacity=ids.size if masked else None)
        return unpermute(rows * (permutation.experts[..., None] + 1), permutation, weights)

    y = f(x, ids, weights)
    assert y.dtype == jnp.float32
    expected = np.zeros((ids.shape[0], 5))
    for (t, s), e in np.ndenumerate(ids):
        expected[t] += weights[t, s] * (e + 1) * x[t] if e >= 0 else 0
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("capacity", [None, 6])
def test_an_id_of_minus_one_contributes_not_even_nan(capacity):
    ids = np.array([[0, -1], [-1, -1], [2, 0]])
    weights = np.array([[0.5, np.nan], [np.inf, np.nan], [1, 2]], np.float32)
    x = np.array([[1.0], [np.nan], [3.0]], np.float32)

    def f(x, weights):
        rows, permutation = permute(x, ids, 3, capacity=capacity)
        total = jnp.sum(permutation.counts)
        kept = jnp.arange(rows.size) < total
        if capacity is not None:
            kept = jnp.arange(capacity) < permutation.counts[:, None]
        poisoned = jnp.where(kept.reshape(rows.shape), rows, jnp.nan)
        return unpermute(poisoned, permutation, weights)[:, 0]

    np.testing.assert_array_equal(jax.jit(f)(x, weights), [0.5, 0, 9])
    gradients = jax.jit(jax.grad(lambda *a: jnp.sum(f(*a)), argnums=(0, 1)))(x, weights)
    np.testing.assert_array_equal(gradients[0], [[0.5], [0], [3]])
    np.testing.assert_array_equal(gradients[1], [[1, 0], [0, 0], [3, 3]])


@pytest.mark.parametrize("bad", [7, -2, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("capacity", [None, 4])
def test_an_id_of_no_expert_makes_its_token_nan(bad, capacity):
    ids = jnp.array([[0, 1], [2, bad]], jnp.int32)

    @jax.jit
    def f(ids):
        rows, permutation = permute(jnp.ones((2, 3)), ids, 7, capacity=capacity)
        return unpermute(rows, permutation, jnp.ones((2, 2))), permutation.counts

    y, counts = f(ids)
    assert counts.sum() == 3
    np.testing.assert_array_equal(y[0], [2, 2, 2])
    assert np.isnan(y[1]).all()


def test_a_full_buffer_makes_tokens_nan_and_never_drops_them():
    ids = np.array([[0], [1], [0], [0]])
    rows, permutation = permute(jnp.ones((4, 2)), ids, 2, capacity=2)
    np.testing.assert_array_equal(permutation.counts, [2, 1])
    y = unpermute(rows, permutation, jnp.ones((4, 1)))
    np.testing.assert_array_equal(np.isnan(y[:, 0]), [False, False, False, True])


def test_windows_of_a_buffer_serve_every_row_once():
    ids = np.random.default_rng(5).integers(-1, 3, (17, 2))
    x = np.random.default_rng(6).normal(size=(17, 4)).astype(np.float32)
    weights = np.ones((17, 2), np.float32)

    @jax.jit
    def window(first):
        rows, permutation = permute(x, ids, 3, capacity=5, first=first)
        return unpermute(rows, permutation, weights), permutation.counts

    parts = [window(jnp.int32(first)) for first in range(0, 35, 5)]
    np.testing.assert_allclose(sum(p[0] for p in parts), x * (ids >= 0).sum(1)[:, None], rtol=1e-6)
    np.testing.assert_array_equal(sum(p[1] for p in parts), [(ids == e).sum() for e in range(3)])
    assert all(np.all(p[1] <= 5) for p in parts)


def test_permute_takes_quantised_activations():
    x = np.random.default_rng(7).normal(size=(6, 40)).astype(np.float32)
    ids = np.array([[2, 1], [0, 2], [-1, 1], [1, 0], [2, 0], [0, 1]])
    rows, permutation = permute(jax_w4a8.quantize_activation(x, block=32), ids, 3)
    floats, _ = permute(x, ids, 3)
    expected = jax_w4a8.quantize_activation(floats, block=32)
    np.testing.assert_array_equal(rows.scales, expected.scales)
    np.testing.assert_array_equal(
        np.asarray(rows.codes).view(np.uint8), np.asarray(expected.codes).view(np.uint8)
    )
    assert rows.block == 32
    assert permutation.counts.dtype == jnp.int32


def test_permute_and_unpermute_refuse():
    x = jnp.ones((4, 2))
    with pytest.raises(TypeError, match="ids: expected integers"):
        permute(x, jnp.ones((4, 1)), 2)
    with pytest.raises(ValueError, match="ids: expected shape"):
        permute(x, jnp.ones((3, 1), jnp.int32), 2)
    rows, permutation = permute(x, jnp.zeros((4, 1), jnp.int32), 2)
    with pytest.raises(ValueError, match="weights: expected shape"):
        unpermute(rows, permutation, jnp.ones((4, 2)))
