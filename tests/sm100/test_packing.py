"""The SM100 layout of a weight: where everything goes, and back."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_w4a8
from jax_w4a8.backends import BackendError, sm100
from jax_w4a8.weights import QuantizedWeight

SHAPES = [
    (1, 1), (1, 32), (8, 31), (7, 96), (24, 128), (72, 130), (127, 160), (128, 256), (129, 384),
    (130, 48), (768, 200), (2880, 2880),
]  # fmt: skip


def weight(n: int, k: int, lead: tuple[int, ...] = ()) -> QuantizedWeight:
    """Random codes, zero past k, and random scales."""
    rng = np.random.default_rng(n * 10007 + k)
    padded = -(-k // 32) * 32
    codes = rng.integers(0, 16, (*lead, n, padded), dtype=np.uint8)
    codes[..., k:] = 0
    scales = rng.integers(0, 255, (*lead, n, padded // 32), dtype=np.uint8)
    return QuantizedWeight(codes[..., 0::2] | codes[..., 1::2] << 4, scales, k=k)


@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_unpack_gives_the_weight_back(n: int, k: int) -> None:
    w = weight(n, k)
    packed = jax_w4a8.prepack(w, layout="sm100")
    assert packed.layout == "sm100"
    assert packed.shape == w.shape == (k, n)
    back = jax_w4a8.unpack(packed)
    np.testing.assert_array_equal(back.codes, w.codes)
    np.testing.assert_array_equal(back.scales, w.scales)
    assert (back.layout, back.k, back.n) == ("plain", k, n)


@pytest.mark.parametrize("lead", [(3,), (2, 3)])
def test_experts_are_packed_one_by_one(lead: tuple[int, ...]) -> None:
    w = weight(136, 96, lead)
    packed = jax_w4a8.prepack(w, layout="sm100")
    assert packed.lead == lead
    one = weight(136, 96)
    for index in np.ndindex(*lead):
        one = QuantizedWeight(w.codes[index], w.scales[index], k=96)
        alone = jax_w4a8.prepack(one, layout="sm100")
        np.testing.assert_array_equal(packed.codes[index], alone.codes)
        np.testing.assert_array_equal(packed.scales[index], alone.scales)
    back = jax_w4a8.unpack(packed)
    np.testing.assert_array_equal(back.codes, w.codes)
    np.testing.assert_array_equal(back.scales, w.scales)


def test_k_of_2880_is_padded_to_whole_tiles() -> None:
    packed = jax_w4a8.prepack(weight(2880, 2880), layout="sm100")
    # K to 2944: 92 columns of scales for 90; N to 2944 rows of scales.
    assert packed.codes.shape == (2880, 2944 // 2)
    assert packed.scales.shape == (2944 // 128, 2944 // 128 * 512)
    assert packed.scales.size == 2944 * 92


@pytest.mark.parametrize(("n", "k"), SHAPES[:-1])
def test_every_scale_is_where_the_tensor_core_looks(n: int, k: int) -> None:
    w = weight(n, k)
    codes, scales = jax_w4a8.prepack(w, layout="sm100").arrays
    blocks, units = w.scales.shape[-1], -(-k // 128)
    expected = np.full(np.asarray(scales).size, 127, np.uint8)
    for r in range(n):
        for kb in range(blocks):
            tile = r // 128 * units + kb // 4
            expected[tile * 512 + r % 32 * 16 + r % 128 // 32 * 4 + kb % 4] = w.scales[r, kb]
    np.testing.assert_array_equal(np.asarray(scales).reshape(-1), expected)
    expected_codes = np.zeros((-(-n // 8) * 8, units * 64), np.uint8)
    expected_codes[:n, : w.codes.shape[-1]] = w.codes
    np.testing.assert_array_equal(codes, expected_codes)


def test_packing_is_traceable() -> None:
    w = weight(40, 200)
    eager = jax_w4a8.prepack(w, layout="sm100")
    traced = jax.jit(lambda w: jax_w4a8.prepack(w, layout="sm100"))(w)
    np.testing.assert_array_equal(eager.codes, traced.codes)
    np.testing.assert_array_equal(eager.scales, traced.scales)


def test_a_packed_weight_is_refused_by_other_kernels() -> None:
    packed = jax_w4a8.prepack(weight(24, 64), layout="sm100")
    x = jnp.ones((4, 64))
    for name in ("xla", "host", "auto"):
        with (
            jax_w4a8.use_backend(name),
            pytest.raises(BackendError, match=r"'sm100'.*jax_w4a8\.unpack"),
        ):
            jax_w4a8.dot(x, packed)
    with pytest.raises(ValueError, match="plain layout"):
        jax_w4a8.prepack(packed, layout="plain")


def test_swizzling_takes_any_leading_dimensions() -> None:
    scales = np.random.default_rng(0).integers(0, 255, (2, 3, 130, 5), dtype=np.uint8)
    swizzled = sm100.swizzle_scales(jnp.asarray(scales))
    assert swizzled.shape == (2, 3, 2, 1024)
    back = np.asarray(sm100.unswizzle_scales(swizzled))
    np.testing.assert_array_equal(back[..., :130, :5], scales)
    assert (back[..., 130:, :] == 127).all()
    assert (back[..., 5:] == 127).all()
