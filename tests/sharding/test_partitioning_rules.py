"""Which dimensions of a product may be split, and how proposals that clash are settled."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_w4a8.ops.partitioning import product_rule
from jax_w4a8.product import Product

F32, E4M3 = np.dtype("float32"), np.dtype(jnp.float8_e4m3fn)


def rule(kind, ranks, *, block=128, layout="plain", x_dtype=F32):
    return product_rule(Product(kind, 8, 64, 1024, 4, block, layout, x_dtype, F32), ranks)


@pytest.mark.parametrize(
    ("kind", "x_dtype", "block", "text", "whole"),
    [
        ("dense", F32, 128, "m k, n k, n k -> m n", ()),
        ("dense", E4M3, 32, "m k, m k, n k, n k -> m n", ()),
        ("dense", E4M3, 0, "m k, m one, n k, n k -> m n", ("k", "one")),
        ("grouped", F32, 128, "m k, counts, e n k, e n k -> m n", ("m", "counts")),
        ("masked", F32, 128, "e rows k, e, e n k, e n k -> e rows n", ("rows",)),
    ],
)
def test_plain_weights(kind, x_dtype, block, text, whole):
    found = rule(kind, (), block=block, x_dtype=x_dtype)
    assert (str(found), found.whole) == (text, whole)


def test_packed_weights_are_split_along_experts_only():
    """Further dimensions mean what their kernels make of them."""
    found = rule("masked", (3, 1, 4, 3, 2), layout="sm90")
    assert str(found) == "e rows k, e, e w0d0 w0d1 w0d2, e w1d0 w1d1, e w2d0 -> e rows n"
    assert set(found.sizes) == {"e"}
    found = rule("dense", (2, 2, 1), layout="sm100")
    assert str(found) == "m k, w0d0 w0d1, w1d0 -> m n"
    assert set(found.sizes) == {"m"}


def test_proposals():
    mesh = jax.make_mesh((2, 4), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    dense = rule("dense", ())
    none = (None, None)

    def axes(x, w, y):
        return dense.axes(mesh, [x, w, w], [y])

    assert axes(("a", "b"), (None, "b"), none) == {"m": ("a",), "k": ("b",)}
    # The result's own axes come first: rows here, though the weight has its columns there.
    assert axes(none, ("b", None), ("b", None)) == {"m": ("b",)}
    # Eight pieces of 128 are whole blocks; with K = 1024 more would not be.
    assert axes((None, ("a", "b")), none, none) == {"k": ("a", "b")}
    short = product_rule(Product("dense", 8, 64, 512, 1, 128, "plain", F32, F32), ())
    assert short.axes(mesh, [(None, ("a", "b")), none, none], [none]) == {}
    # Nine rows cannot be shared out evenly, and are not.
    odd = product_rule(Product("dense", 9, 64, 512, 1, 128, "plain", F32, F32), ())
    assert odd.axes(mesh, [("a", None), none, none], [("a", None)]) == {}
