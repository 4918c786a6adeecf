"""``jax_w4a8.dot`` and selftest with the sm100 backend, its custom calls in the emulator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_w4a8
from jax_w4a8 import backends
from jax_w4a8.cli import selftest
from tests.sm100.standin import aligned
from tests.sm100_emulator.gpu import Gpu
from tests.sm100_emulator.mutants import descriptor


@pytest.fixture
def emulated(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """The sm100 backend serves the CPU, by way of the emulator."""
    cls, real = type(backends.get("sm100")), jax.ffi.ffi_call
    monkeypatch.setattr(cls, "platforms", ("cpu",))
    monkeypatch.setattr(cls, "missing", lambda self: None)
    monkeypatch.setattr(cls, "refuses_device", lambda self, device: None)

    def ffi_call(target: str, results: Sequence[Any], **options: Any) -> Any:
        if not target.startswith("jax_w4a8_sm100"):
            return real(target, results, **options)

        def call(*operands: jax.Array, **attributes: int | str) -> Any:
            def run(*arrays: Any) -> tuple[np.ndarray, ...]:
                inputs = [aligned(a.shape, a.dtype) for a in arrays]
                for ours, theirs in zip(inputs, arrays, strict=True):
                    ours[...] = np.asarray(theirs)
                outputs = [aligned(r.shape, r.dtype) for r in results]
                gpu.call(target, inputs, outputs, attributes)
                return tuple(outputs)

            return jax.pure_callback(run, tuple(results), *operands)

        return call

    monkeypatch.setattr(jax.ffi, "ffi_call", ffi_call)
    jax.clear_caches()
    yield gpu
    jax.clear_caches()


def test_dot(emulated: Gpu) -> None:
    rng = np.random.default_rng(0)
    w = jax_w4a8.quantize(rng.normal(size=(100, 30)).astype(np.float32))
    x = jnp.asarray(rng.normal(size=(4, 3, 100)), jnp.float32)
    with jax_w4a8.use_backend("xla"):
        expected = jax_w4a8.dot(x, w)
    before = emulated.emulator.count("MMAs")
    with jax_w4a8.use_backend("sm100"):
        y = jax_w4a8.dot(x, w)
    assert emulated.emulator.count("MMAs") > before
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-4)


def test_selftest(emulated: Gpu, capsys: pytest.CaptureFixture[str]) -> None:
    assert selftest.main([]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("sm100")]
    assert len(rows) == 9
    assert all(row.endswith("as predicted") for row in rows)


def test_selftest_fails_where_a_kernel_is_wrong(
    emulated: Gpu, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = descriptor(1 << 29, 0)
    emulated.change_text = lambda name, ptx: wrong(ptx) if "device_kernel" in name else ptx
    try:
        assert selftest.main([]) == 1
    finally:
        emulated.change_text = lambda name, text: text
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("sm100")]
    assert any("differ" in row and row.endswith("FAILED") for row in rows)
