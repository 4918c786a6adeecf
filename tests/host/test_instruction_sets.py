"""The CPU kernels of every instruction set that this machine has, each against float64."""

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_w4a8
from jax_w4a8 import QuantizedActivation, QuantizedWeight, _host
from tests import reference


@pytest.fixture(params=_host.instruction_sets(), autouse=True)
def instruction_set(request):
    before = _host.instruction_set()
    _host.use_instruction_set(request.param)
    with jax_w4a8.use_backend("host"):
        yield request.param
    _host.use_instruction_set(before)


def operands(rng, m, n, k, x_spread, w_spread):
    """Codes and scales drawn at random; a row's scales lie within so many binades."""
    w = QuantizedWeight(
        rng.integers(0, 256, (n, k // 2), np.uint8),
        rng.integers(1, 1 + w_spread, (n, k // 32)).astype(np.uint8),
    )
    codes = rng.integers(0, 256, (m, k), np.uint8)
    codes[codes & 0x7F == 0x7F] = 0
    scales = rng.integers(1, 1 + x_spread, (m, k // 32)).astype(np.uint8)
    return (codes, scales), w


def check(x, w):
    codes, scales = x
    a = QuantizedActivation(jax.lax.bitcast_convert_type(codes, jnp.float8_e4m3fn), scales, 32)
    y = np.asarray(jax_w4a8.dot(a, w), np.float64)
    exact, terms = reference.product(
        reference.dequantize_activation(codes, scales, 32),
        reference.dequantize_weight(np.asarray(w.codes), np.asarray(w.scales), w.k),
    )
    # Results below float32's normal numbers may be flushed.
    flushed = (np.abs(exact) < 2.0**-126) & (y == 0)
    reference.assert_within_bound(np.where(flushed, exact, y).astype(np.float32), exact, terms)


def test_every_number_of_blocks():
    """Whole and partial chunks of every register width."""
    rng = np.random.default_rng(0)
    for k in [*range(32, 1312, 32), 2880, 4064]:
        check(*operands(rng, 3, 3, k, 3, 8))


@pytest.mark.parametrize("w_spread", [1, 69, 71, 140, 250])
@pytest.mark.parametrize("x_spread", [1, 119, 122, 250])
def test_spreads_of_scales(x_spread, w_spread):
    """Past what float32 holds, a row is summed in double."""
    rng = np.random.default_rng(x_spread + w_spread)
    (codes, scales), w = operands(rng, 4, 5, 352, x_spread, w_spread)
    # Zero blocks have no say, whatever their scale.
    codes[0, :32], scales[0, 0] = 0, 254
    check((codes, scales), w)


def test_every_number_of_rows():
    rng = np.random.default_rng(0)
    for m in range(1, 15):
        check(*operands(rng, m, 5, 128, 3, 8))


def poisoned(array):
    """``array`` as a device array over memory with 0xFF on both sides, and that memory."""
    array = np.ascontiguousarray(array)
    memory = np.full(array.nbytes + 4096 + 64, 0xFF, np.uint8)
    start = 2048 - (memory.ctypes.data + 2048) % -64
    view = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    view[...] = array
    device = jax.device_put(view, may_alias=True)
    assert device.unsafe_buffer_pointer() == view.ctypes.data
    return device, memory


@pytest.mark.parametrize("m", [1, 5, 32, 127, 128, 129])
def test_nothing_beside_the_operands_is_read(m):
    rng = np.random.default_rng(m)
    w = jax_w4a8.quantize(rng.normal(size=(160, 27)).astype(np.float32))
    x = rng.normal(size=(m, 160)).astype(np.float32)
    clean = np.asarray(jax_w4a8.dot(x, w))
    held = [poisoned(np.asarray(a)) for a in (x, w.codes, w.scales)]
    poisoned_x, codes, scales = (array for array, _ in held)
    dirty = QuantizedWeight.from_arrays((codes, scales), k=160, n=27, layout="plain")
    y = np.asarray(jax_w4a8.dot(poisoned_x, dirty))
    np.testing.assert_array_equal(y.view(np.uint32), clean.view(np.uint32))


def test_many_threads_at_once():
    rng = np.random.default_rng(0)
    w = jax_w4a8.quantize(rng.normal(size=(256, 300)).astype(np.float32))
    f = jax.jit(jax_w4a8.dot)
    xs = [rng.normal(size=(33, 256)).astype(np.float32) for _ in range(16)]
    expected = [np.asarray(f(x, w)) for x in xs]
    results = [None] * len(xs)

    def work(i):
        with jax_w4a8.use_backend("host"):
            results[i] = np.asarray(f(xs[i], w))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(xs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(results, expected)


def test_an_unknown_instruction_set_is_refused(instruction_set):
    with pytest.raises(ValueError, match=r"instruction set: expected one of .*generic; got mmx"):
        _host.use_instruction_set("mmx")
    assert _host.instruction_set() == instruction_set
