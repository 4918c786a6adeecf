"""A ``QuantizedWeight`` in jit, vmap, scan, tree maps, pickles and checkpoints."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint
import pytest

import jax_w4a8
from jax_w4a8 import QuantizedWeight


def weight(*lead, seed=0):
    kernel = np.random.default_rng(seed).normal(size=(*lead, 48, 6)).astype(np.float32)
    return jax_w4a8.quantize(kernel)


def assert_same(a, b):
    assert (a.shape, a.layout) == (b.shape, b.layout)
    for x, y in zip(a.arrays, b.arrays, strict=True):
        np.testing.assert_array_equal(np.asarray(x), np.asarray(y))


def test_jit_and_tree_map():
    w = weight()
    assert_same(jax.jit(lambda w: w)(w), w)
    assert_same(jax.tree.map(lambda a: a, w), w)
    assert jax.eval_shape(lambda w: w, w).shape == (48, 6)
    names = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(w)]
    assert names == [".codes", ".scales"]


def test_scan_and_vmap_take_the_leading_dimension():
    w = weight(3)

    def shape(w):
        assert w.shape == (48, 6)
        return w.dequantize()

    expected = np.asarray(w.dequantize())
    np.testing.assert_array_equal(np.asarray(jax.vmap(shape)(w)), expected)
    _, scanned = jax.lax.scan(lambda c, w: (c, shape(w)), 0, w)
    np.testing.assert_array_equal(np.asarray(scanned), expected)


def test_pickle():
    assert_same(pickle.loads(pickle.dumps(weight(2))), weight(2))


def test_orbax_checkpoint(tmp_path):
    w = weight(2)
    with orbax.checkpoint.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "w", {"w": w})
        checkpointer.wait_until_finished()
        restored = checkpointer.restore(tmp_path / "w", {"w": jax.tree.map(jnp.zeros_like, w)})
    assert_same(restored["w"], w)


def test_packed_weights_too():
    w = weight(2)
    for layout in ("sm90", "sm100"):
        packed = jax_w4a8.prepack(w, layout=layout)
        again = pickle.loads(pickle.dumps(packed))
        assert_same(again, packed)
        assert_same(jax_w4a8.unpack(again), w)
        assert jax.vmap(lambda w: jnp.zeros(w.shape))(packed).shape == (2, 48, 6)


def test_repr_says_what_to_call():
    assert "QuantizedWeight(shape=(2, 48, 6), layout='plain'; use jax_w4a8.dot" in repr(weight(2))
    a = jax_w4a8.quantize_activation(np.ones((2, 48), np.float32))
    assert "QuantizedActivation(shape=(2, 48), block=128" in repr(a)


def test_debug_print(capfd):
    jax.jit(lambda w: jax.debug.print("{}", w))(weight())
    jax.effects_barrier()
    assert "QuantizedWeight(shape=(48, 6)" in capfd.readouterr().out


@pytest.mark.parametrize(
    "mix",
    [
        lambda w: jnp.ones((2, 48)) @ w,
        lambda w: np.ones((2, 48)) @ w,
        lambda w: w @ jnp.ones((6, 2)),
        lambda w: w * 2.0,
        lambda w: 1.0 + w,
        lambda w: jnp.sin(w),
        lambda w: np.asarray(w),
    ],
)
def test_mixing_with_floats_says_what_to_call(mix):
    with pytest.raises(TypeError, match=r"jax_w4a8.dot\(x, w\)|dequantize"):
        mix(weight())


def test_a_weight_is_immutable():
    with pytest.raises(AttributeError, match="QuantizedWeight is immutable"):
        weight().k = 3
    assert isinstance(weight(), QuantizedWeight)
