"""The same numbers as JAX's own products of block-scaled operands."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_w4a8

M, N, K = 16, 24, 128


def operands():
    rng = np.random.default_rng(0)
    w = jax_w4a8.quantize(rng.normal(size=(K, N)).astype(np.float32))
    x = rng.normal(size=(M, K)).astype(np.float32)
    return jax_w4a8.quantize_activation(x, block=32), w


def e8m0(scales):
    return lax.bitcast_convert_type(scales, jnp.float8_e8m0fnu)


def e2m1(w):
    nibbles = jnp.stack([w.codes & 15, w.codes >> 4], -1).reshape(*w.codes.shape[:-1], K)
    return lax.bitcast_convert_type(nibbles.astype(jnp.uint4), jnp.float4_e2m1fn)


def close(ours, theirs, a, w):
    """Within float32 summation of each other."""
    x, kernel = (np.asarray(o.dequantize(jnp.float32), np.float64) for o in (a, w))
    bound = 2.0**-19 * (abs(x) @ abs(kernel))
    assert (abs(np.asarray(ours, np.float64) - np.asarray(theirs, np.float64)) <= bound).all()


def scaled_dot(a, w):
    return lax.scaled_dot(
        a.codes[None],
        e2m1(w).T[None],
        lhs_scale=e8m0(a.scales)[None],
        rhs_scale=e8m0(w.scales).T[None],
        preferred_element_type=jnp.float32,
    )


def scaled_matmul(a, w):
    """With the weight as E4M3, which holds E2M1, since it wants both operands in one format."""
    weights = e2m1(w).astype(jnp.float8_e4m3fn)
    return jax.nn.scaled_matmul(
        a.codes[None], weights[None], e8m0(a.scales)[None], e8m0(w.scales)[None]
    )


# Before jax 0.11, scaled_matmul knows GPUs only.
REFERENCES = [scaled_dot, *([scaled_matmul] if jax.__version_info__ >= (0, 11) else [])]


@pytest.mark.parametrize("reference", REFERENCES)
def test_block_scaled_products(backend, reference):
    a, w = operands()
    close(jax_w4a8.dot(a, w), reference(a, w)[0], a, w)


def test_ragged_dot(backend):
    rng = np.random.default_rng(0)
    w = jax_w4a8.quantize(rng.normal(size=(4, K, N)).astype(np.float32))
    a = jax_w4a8.quantize_activation(rng.normal(size=(M, K)).astype(np.float32))
    sizes = rng.multinomial(M - 2, [0.25] * 4).astype(np.int32)
    x, kernels = a.dequantize(), w.dequantize()
    theirs = lax.ragged_dot(x, kernels, sizes, precision=lax.Precision.HIGHEST)
    terms = lax.ragged_dot(abs(x), abs(kernels), sizes, precision=lax.Precision.HIGHEST)
    ours = jax_w4a8.grouped_dot(a, w, sizes)
    assert (abs(np.asarray(ours) - np.asarray(theirs)) <= 2.0**-19 * np.asarray(terms)).all()
    assert (np.asarray(ours)[M - 2 :] == 0).all()
