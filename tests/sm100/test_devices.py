"""Which devices the SM100 backend serves, and what it says of the others."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jax_w4a8
from jax_w4a8.backends import BackendError, selection, sm100


@dataclasses.dataclass(frozen=True)
class Gpu:
    """What selection asks of a GPU."""

    device_kind: str
    compute_capability: str
    platform: str = "gpu"


A100 = Gpu("NVIDIA A100", "8.0")
H200 = Gpu("NVIDIA H200", "9.0")
B200 = Gpu("NVIDIA B200", "10.0")
B300 = Gpu("NVIDIA B300", "10.3")
SPARK = Gpu("NVIDIA GB10", "12.1")


def lower(monkeypatch: pytest.MonkeyPatch, gpu: Gpu, backend: str, extension: str | None) -> str:
    """The text of a product lowered for a machine with this GPU, and this extension missing."""
    monkeypatch.setattr(selection, "devices_of", lambda platform: (gpu,))
    monkeypatch.setattr(type(sm100.BACKEND), "missing", lambda self: extension)
    w = jax_w4a8.quantize(jnp.ones((64, 16)))

    def product(x: Any) -> Any:
        return jax_w4a8.dot(x, w)

    with jax_w4a8.use_backend(backend):
        traced = jax.jit(product).trace(jnp.ones((4, 64), jnp.bfloat16))
        return traced.lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.parametrize("gpu", [A100, H200, SPARK], ids=lambda gpu: gpu.compute_capability)
def test_a_named_backend_fails_at_once_on_another_device(monkeypatch, gpu: Gpu) -> None:
    with pytest.raises(BackendError) as error:
        lower(monkeypatch, gpu, "sm100", None)
    message = str(error.value)
    assert gpu.device_kind in message
    assert gpu.compute_capability in message
    assert "10.x" in message
    assert "use_backend('auto')" in message


@pytest.mark.parametrize("gpu", [A100, SPARK], ids=lambda gpu: gpu.compute_capability)
def test_auto_falls_back_on_another_device(monkeypatch, gpu: Gpu) -> None:
    module = lower(monkeypatch, gpu, "auto", None)
    assert "custom_call @jax_w4a8" not in module
    assert "stablehlo.dot_general" in module


@pytest.mark.parametrize("gpu", [B200, B300], ids=lambda gpu: gpu.compute_capability)
@pytest.mark.parametrize("backend", ["auto", "sm100"])
def test_blackwell_is_served(monkeypatch, gpu: Gpu, backend: str) -> None:
    assert "@jax_w4a8_sm100_dense_v1" in lower(monkeypatch, gpu, backend, None)


def test_without_the_extension_blackwell_falls_back(monkeypatch) -> None:
    why = "the extension jax_w4a8._sm100 is not built; build it with `make cuda`"
    assert "@jax_w4a8_sm100" not in lower(monkeypatch, B200, "auto", why)
    with pytest.raises(BackendError, match="make cuda"):
        lower(monkeypatch, B200, "sm100", why)


def test_a_device_that_does_not_say_is_refused() -> None:
    reason = sm100.BACKEND.refuses_device(dataclasses.replace(B200, compute_capability="1.0"))
    assert reason is not None
    assert "1.0" in reason


def test_products_beyond_int32_are_refused() -> None:
    bf16 = jnp.dtype("bfloat16")
    product = jax_w4a8.product.Product("dense", 1 << 30, 8, 128, 1, 128, "sm100", bf16, bf16)
    assert "2**30" in (sm100.BACKEND.refuses(product) or "")
