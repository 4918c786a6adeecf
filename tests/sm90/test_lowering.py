"""What a host without a GPU emits for Hopper."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jax_w4a8
from jax_w4a8.backends import BackendError, selection, sm90


def weight(*lead: int) -> jax_w4a8.QuantizedWeight:
    w = jax_w4a8.quantize(jnp.ones((*lead, 64, 24)))
    return jax_w4a8.prepack(w, layout="sm90")


def emit(function: Callable[..., Any], *arguments: Any) -> str:
    with jax_w4a8.use_backend("sm90"):
        traced = jax.jit(function).trace(*arguments)
        return traced.lower(lowering_platforms=("cuda",)).as_text()


X = jnp.ones((6, 64), jnp.bfloat16)
SIZES = jnp.array([4, 0, 2], jnp.int32)


def test_dense() -> None:
    text = emit(jax_w4a8.dot, X, weight())
    assert text.count("custom_call @jax_w4a8_sm90_dense_v1") == 1
    assert "dot_general" not in text


def test_quantized_activations() -> None:
    text = emit(lambda x, w: jax_w4a8.dot(jax_w4a8.quantize_activation(x), w), X, weight())
    assert text.count("custom_call @jax_w4a8_sm90_quantize_v1") == 1
    assert text.count("custom_call @jax_w4a8_sm90_dense_v1") == 1


def test_grouped_and_masked() -> None:
    text = emit(jax_w4a8.grouped_dot, X, weight(3), SIZES)
    assert text.count("custom_call @jax_w4a8_sm90_grouped_v1") == 1
    text = emit(jax_w4a8.masked_grouped_dot, jnp.stack([X] * 3), weight(3), SIZES)
    assert text.count("custom_call @jax_w4a8_sm90_masked_v1") == 1


def test_vmap_over_rows_is_one_dense_product() -> None:
    text = emit(jax.vmap(jax_w4a8.dot, (0, None)), jnp.stack([X] * 3), weight())
    assert text.count("custom_call @jax_w4a8_sm90_dense_v1") == 1
    assert "tensor<18x64xbf16>" in text


def test_gradient_runs_the_forward_product_on_the_kernel() -> None:
    def loss(x: jax.Array, w: jax_w4a8.QuantizedWeight) -> jax.Array:
        return jnp.sum(jax_w4a8.dot(x, w).astype(jnp.float32) ** 2)

    text = emit(jax.grad(loss), X, weight())
    assert text.count("custom_call @jax_w4a8_sm90_dense_v1") == 1


def test_a_tile_that_is_asked_for_is_an_attribute() -> None:
    with sm90.use_tile("64x64", split=2):
        text = emit(jax_w4a8.dot, X, weight())
    assert 'tile = "64x64"' in text
    assert "split = 2 : i64" in text


@dataclasses.dataclass(frozen=True)
class Gpu:
    device_kind: str
    compute_capability: str
    platform: str = "gpu"


@pytest.mark.parametrize("capability", ["8.0", "8.9", "10.0", "12.0"])
def test_other_devices_are_refused(monkeypatch: pytest.MonkeyPatch, capability: str) -> None:
    gpu = Gpu("some GPU", capability)
    monkeypatch.setattr(selection, "devices_of", lambda platform: (gpu,))
    monkeypatch.setattr(type(sm90.BACKEND), "missing", lambda self: None)
    w = weight()
    with pytest.raises(BackendError) as error:
        emit(lambda x, w: jax_w4a8.dot(x, w), X, w)  # traced anew for each device
    assert "9.0" in str(error.value)
    assert capability in str(error.value)
