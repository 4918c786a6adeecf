"""E2M1, E4M3 and UE8M0 against their definitions, in eager and jit alike."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_w4a8 import formats
from tests import reference


def eager_and_jit(f, *arguments):
    """What ``f`` gives outside and inside jit, which must be the same bits."""
    eager, jitted = np.asarray(f(*arguments)), np.asarray(jax.jit(f)(*arguments))
    assert eager.tobytes() == jitted.tobytes()
    return eager


def float32_edges():
    """Powers of two with their neighbours, zeros, subnormals, the largest, random numbers."""
    powers = (np.arange(1, 255, dtype=np.uint32) << 23).view(np.float32)
    with np.errstate(over="ignore"):
        around = [
            powers,
            np.nextafter(powers, np.float32(0)),
            np.nextafter(powers, np.float32(np.inf)),
        ]
    few = np.array([0, 1e-45, 1e-40, 1.1754942e-38, 3.4028235e38], np.float32)
    rng = np.random.default_rng(0)
    random = rng.normal(size=4000).astype(np.float32) * np.float32(2) ** rng.integers(-20, 20, 4000)
    values = np.concatenate([*around, few, random.astype(np.float32)])
    return np.concatenate([values, -values])


def test_e2m1_codes_survive():
    codes = jnp.arange(16, dtype=jnp.uint8)
    values = eager_and_jit(formats.decode_e2m1, codes)
    np.testing.assert_array_equal(values, reference.E2M1)
    np.testing.assert_array_equal(np.signbit(values), np.arange(16) >= 8)
    np.testing.assert_array_equal(eager_and_jit(formats.encode_e2m1, jnp.asarray(values)), codes)


def test_e2m1_ties_go_to_even():
    values = np.array([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5, 0.25000006, 6.5, 1e9], np.float32)
    expected = np.array([0, 1, 1, 2, 2, 4, 4, 0.5, 6, 6])
    for sign in (1, -1):
        codes = eager_and_jit(formats.encode_e2m1, jnp.asarray(sign * values))
        np.testing.assert_array_equal(reference.E2M1[codes], sign * expected)


def test_e2m1_of_every_kind_of_number():
    values = float32_edges()
    codes = eager_and_jit(formats.encode_e2m1, jnp.asarray(values))
    np.testing.assert_array_equal(codes, reference.encode_e2m1(reference.flush(values)))


def test_e4m3_codes_survive():
    codes = np.array([c for c in range(256) if c & 0x7F != 0x7F], np.uint8)
    values = eager_and_jit(
        lambda c: formats.decode_e4m3(jax.lax.bitcast_convert_type(c, jnp.float8_e4m3fn)), codes
    )
    np.testing.assert_array_equal(values, reference.E4M3[codes])
    again = eager_and_jit(formats.encode_e4m3, jnp.asarray(values))
    np.testing.assert_array_equal(again.view(np.uint8), codes)


def test_e4m3_saturates_and_keeps_nan():
    values = jnp.asarray([448, 464, 465, 1e9, -1e9, np.nan, np.inf, 2.0**-10], jnp.float32)
    codes = eager_and_jit(formats.encode_e4m3, values).view(np.uint8)
    np.testing.assert_array_equal(codes, [0x7E, 0x7E, 0x7E, 0x7E, 0xFE, 0x7F, 0x7E, 0x00])


def test_e4m3_of_every_kind_of_number():
    values = float32_edges()
    codes = eager_and_jit(formats.encode_e4m3, jnp.asarray(values)).view(np.uint8)
    np.testing.assert_array_equal(codes, reference.encode_e4m3(reference.flush(values)))


def test_all_scales_decode_as_arguments_and_as_constants():
    """Byte 0 is 2**-127, a subnormal that arithmetic would flush; 255 is NaN."""
    codes = jnp.arange(256, dtype=jnp.uint8)
    values = eager_and_jit(formats.decode_ue8m0, codes)
    constant = np.asarray(jax.jit(lambda: formats.decode_ue8m0(codes))())
    np.testing.assert_array_equal(values, constant)
    np.testing.assert_array_equal(
        values.view(np.uint32)[:255], np.float32(reference.UE8M0[:255]).view(np.uint32)
    )
    assert np.isnan(values[255])


@pytest.mark.parametrize(
    ("amax", "byte"), [(150, 126), (448, 127), (449, 128), (0, 127), (2.0**-126, 0), (3.4e38, 247)]
)
def test_ceil_scale_of_activations(amax, byte):
    """2**ceil(log2(amax / 448)): the least that does not clip."""
    bits = jnp.asarray(np.float32(amax).view(np.uint32))
    assert eager_and_jit(lambda b: formats.scale_bytes_ceil(b, 8, 0x600000), bits) == byte


def test_nibbles_pack_low_first():
    codes = jnp.asarray([1, 2, 15, 0], jnp.uint8)
    packed = eager_and_jit(formats.pack_nibbles, codes)
    np.testing.assert_array_equal(packed, [0x21, 0x0F])
    np.testing.assert_array_equal(eager_and_jit(formats.unpack_nibbles, packed), codes)
    # Byte 0x21 under a scale of 1 holds 0.5 and 1.0.
    values = formats.decode_packed(jnp.full((16,), 0x21, jnp.uint8), (jnp.ones((1,)),))
    np.testing.assert_array_equal(values[:2], [0.5, 1.0])
