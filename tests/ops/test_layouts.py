"""``prepack`` and ``unpack``: every layout gives the original codes and scales back."""

import jax
import numpy as np
import pytest

import jax_w4a8
from jax_w4a8 import backends

LAYOUTS = [backends.get(name).layouts[0] for name in backends.NAMES]
PACKED = sorted(set(LAYOUTS) - {"plain"})


def weight(*shape, seed=0):
    rng = np.random.default_rng(seed)
    return jax_w4a8.quantize(rng.normal(size=shape).astype("float32"))


def same(a, b):
    assert (a.shape, a.layout) == (b.shape, b.layout)
    for ours, theirs in zip(a.arrays, b.arrays, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("shape", [(64, 24), (48, 7), (2880, 8), (3, 96, 24)])
@pytest.mark.parametrize("layout", PACKED)
def test_there_and_back(layout, shape):
    w = weight(*shape)
    packed = jax_w4a8.prepack(w, layout=layout)
    assert (packed.layout, packed.shape) == (layout, shape)
    same(jax_w4a8.unpack(packed), w)
    assert jax_w4a8.prepack(packed, layout=layout) is packed


@pytest.mark.parametrize("layout", PACKED)
def test_under_jit(layout):
    w = weight(64, 24)
    same(jax.jit(lambda w: jax_w4a8.unpack(jax_w4a8.prepack(w, layout=layout)))(w), w)


def test_plain_stays_as_it_is(backend):
    w = weight(64, 24)
    assert jax_w4a8.prepack(w) is w
    assert jax_w4a8.unpack(w) is w


def test_the_packed_layouts_cover_every_gpu_backend():
    assert sorted(n for n in backends.NAMES if "cuda" in backends.get(n).platforms) == PACKED
