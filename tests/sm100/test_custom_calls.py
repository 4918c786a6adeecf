"""What is emitted for CUDA on a machine without a GPU: the custom calls, as documented."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import jax_w4a8
from jax_w4a8.backends import sm100
from jax_w4a8.backends.sm100 import workspace_bytes
from jax_w4a8.product import Product

K, N, E, M = 160, 20, 3, 6
UNITS, COLUMNS = 2, 24


def weight(*lead: int) -> Any:
    return jax_w4a8.quantize(jnp.ones((*lead, K, N)))


def text(function: Callable[..., Any], *args: Any) -> str:
    with jax_w4a8.use_backend("sm100"):
        traced = jax.jit(function).trace(*args)
        return traced.lower(lowering_platforms=("cuda",)).as_text()


def calls(module: str) -> list[str]:
    return re.findall(r"stablehlo\.custom_call @jax_w4a8_sm100_\w+\(.*", module)


def types(call: str) -> tuple[list[str], list[str]]:
    """Types of a call's operands and of its results."""
    signature = call[call.rindex(" : (") :]
    operands, results = signature.split("->")
    return re.findall(r"tensor<([^>]*)>", operands), re.findall(r"tensor<([^>]*)>", results)


def scratch(kind: str, m: int = M, groups: int = E, block: int = 128) -> str:
    bf16 = jnp.dtype("bfloat16")
    groups = 1 if kind == "dense" else groups
    size = workspace_bytes(Product(kind, m, N, K, groups, block, "sm100", bf16, bf16))
    return f"{size}xui8"


def test_dense() -> None:
    (call,) = calls(text(jax_w4a8.dot, jnp.ones((M, K), jnp.bfloat16), weight()))
    assert "@jax_w4a8_sm100_dense_v1(" in call
    assert f'{{block = 128 : i64, k = {K} : i64, n = {N} : i64, tile = ""}}' in call
    operands, results = types(call)
    assert operands == [f"{M}x{K}xbf16", f"{COLUMNS}x128xui8", f"1x{UNITS * 512}xui8"]
    assert results == [f"{M}x{COLUMNS}xbf16", scratch("dense")]
    assert call.count("dense<[1, 0]> : tensor<2xindex>") == 4
    assert "result_layouts = [dense<[1, 0]> : tensor<2xindex>, dense<0> : tensor<1xindex>]" in call


def test_dense_of_quantised_activations() -> None:
    def product(x: jax.Array, w: Any) -> jax.Array:
        return jax_w4a8.dot(jax_w4a8.quantize_activation(x, block=32), w, out_dtype="float32")

    quantize, call = calls(text(product, jnp.ones((M, K), jnp.float16), weight()))
    assert "@jax_w4a8_sm100_quantize_v1(" in quantize
    assert "{block = 32 : i64}" in quantize
    assert types(quantize) == ([f"{M}x{K}xf16"], [f"{M}x{K}xf8E4M3FN", f"{M}x5xui8"])
    operands, results = types(call)
    assert operands[:2] == [f"{M}x{K}xf8E4M3FN", f"{M}x5xui8"]
    assert results[0] == f"{M}x{COLUMNS}xf32"
    assert "block = 32 : i64" in call


def test_grouped() -> None:
    x, sizes = jnp.ones((M, K), jnp.bfloat16), jnp.array([1, 2, 3])
    (call,) = calls(text(jax_w4a8.grouped_dot, x, weight(E), sizes))
    assert "@jax_w4a8_sm100_grouped_v1(" in call
    operands, results = types(call)
    packed = [f"{E}x{COLUMNS}x128xui8", f"{E}x1x{UNITS * 512}xui8"]
    assert operands == [f"{M}x{K}xbf16", f"{E}xi32", *packed]
    assert results == [f"{M}x{COLUMNS}xbf16", scratch("grouped")]


def test_masked() -> None:
    x, counts = jnp.ones((E, M, K), jnp.float32), jnp.array([1, 2, 3])
    (call,) = calls(text(jax_w4a8.masked_grouped_dot, x, weight(E), counts))
    assert "@jax_w4a8_sm100_masked_v1(" in call
    operands, results = types(call)
    packed = [f"{E}x{COLUMNS}x128xui8", f"{E}x1x{UNITS * 512}xui8"]
    assert operands == [f"{E}x{M}x{K}xf32", f"{E}xi32", *packed]
    assert results == [f"{E}x{M}x{COLUMNS}xf32", scratch("masked")]
    assert call.count("dense<[2, 1, 0]> : tensor<3xindex>") == 4


def test_a_packed_weight_goes_straight_to_its_call() -> None:
    packed = jax_w4a8.prepack(weight(), layout="sm100")
    module = text(jax_w4a8.dot, jnp.ones((M, K), jnp.bfloat16), packed)
    (call,) = calls(module)
    assert re.search(r"\(%arg0, %arg1, %arg2\)", call)
    assert "stablehlo.transpose" not in module


@pytest.mark.parametrize("block", [32, 128, "row"])
def test_blocks(block: int | str) -> None:
    function = lambda x, w: jax_w4a8.dot(x, w, block=block)  # noqa: E731
    (call,) = calls(text(function, jnp.ones((M, K)), weight()))
    assert f"block = {0 if block == 'row' else block} : i64" in call


def test_a_batch_of_rows_is_one_dense_call() -> None:
    function = jax.vmap(jax_w4a8.dot, in_axes=(0, None))
    (call,) = calls(text(function, jnp.ones((4, M, K), jnp.bfloat16), weight()))
    assert "_dense_v1(" in call
    assert types(call)[0][0] == f"{4 * M}x{K}xbf16"


def test_a_batch_of_weights_is_one_masked_call() -> None:
    (call,) = calls(text(jax.vmap(jax_w4a8.dot), jnp.ones((E, M, K), jnp.bfloat16), weight(E)))
    assert "_masked_v1(" in call
    operands, results = types(call)
    assert operands[:2] == [f"{E}x{M}x{K}xbf16", f"{E}xi32"]
    assert results == [f"{E}x{M}x{COLUMNS}xbf16", scratch("masked")]


def test_batches_of_grouped_and_masked_products() -> None:
    sizes = jnp.array([[1, 2, 3]] * 4)
    function = jax.vmap(jax_w4a8.grouped_dot, in_axes=(0, None, 0))
    (call,) = calls(text(function, jnp.ones((4, M, K)), weight(E), sizes))
    assert "_grouped_v1(" in call
    function = jax.vmap(jax_w4a8.masked_grouped_dot, in_axes=(0, 0, 0))
    (call,) = calls(text(function, jnp.ones((4, E, M, K)), weight(4, E), sizes))
    assert "_masked_v1(" in call
    assert types(call)[0][:2] == [f"{4 * E}x{M}x{K}xf32", f"{4 * E}xi32"]


@pytest.mark.parametrize("kind", ["dense", "grouped", "masked"])
def test_gradients_have_the_call_in_front(kind: str) -> None:
    sizes = jnp.array([1, 2, 3])
    if kind == "dense":
        x, function = jnp.ones((M, K)), lambda x: jax_w4a8.dot(x, weight())
    elif kind == "grouped":
        x, function = jnp.ones((M, K)), lambda x: jax_w4a8.grouped_dot(x, weight(E), sizes)
    else:
        x = jnp.ones((E, M, K))
        function = lambda x: jax_w4a8.masked_grouped_dot(x, weight(E), sizes)  # noqa: E731
    module = text(jax.value_and_grad(lambda x: function(x).sum()), x)
    (call,) = calls(module)
    assert f"_{kind}_v1(" in call
    # The gradient itself is an ordinary product with the dequantised weight.
    assert "stablehlo.dot_general" in module


def test_a_tile_that_was_asked_for_is_in_the_call() -> None:
    with sm100.use_tile("dense_128x256"):
        (call,) = calls(text(jax_w4a8.dot, jnp.ones((M, K)), weight()))
    assert 'tile = "dense_128x256"' in call
    (call,) = calls(text(jax_w4a8.dot, jnp.ones((M, K)), weight()))
    assert 'tile = ""' in call


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_silu_and_product_are_quantised_in_one_call(dtype: str) -> None:
    x = jnp.ones((M, K), dtype)
    function = lambda a, b: sm100.BACKEND.silu_mul_quantize(a, b, 128)  # noqa: E731
    (call,) = calls(text(function, x, x))
    assert "@jax_w4a8_sm100_silu_mul_quantize_v1(" in call
    operands, results = types(call)
    assert len(operands) == 2
    assert results == [f"{M}x{K}xf8E4M3FN", f"{M}x2xui8"]
