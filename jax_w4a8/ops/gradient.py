"""A product with its gradient: exact with respect to x, none for the frozen weight."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jax_w4a8 import formats
from jax_w4a8.backends import registry
from jax_w4a8.backends.xla import by_group, contract
from jax_w4a8.ops.primitives import Operands, bind_product
from jax_w4a8.product import Product
from jax_w4a8.varying import vary_like


def differentiable_product(product: Product, operands: Operands, backend: str) -> jax.Array:
    """``product`` of float activations; ``dx = g @ dequantize(w)^T``, the activation quantiser
    taken as the identity (straight-through)."""
    (x,) = operands.x
    x = vary_like(x, operands.flat()[1:])
    return _apply(product, backend, x, operands.sizes, operands.weight)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _apply(product: Product, backend: str, x: jax.Array, sizes: Any, weight: Any) -> jax.Array:
    return bind_product(product, Operands((x,), sizes, weight), backend)


def _forward(product: Product, backend: str, x: jax.Array, sizes: Any, weight: Any) -> Any:
    return _apply(product, backend, x, sizes, weight), (sizes, weight)


def _backward(product: Product, backend: str, residuals: Any, g: jax.Array) -> Any:
    sizes, weight = residuals
    if product.layout != "plain":
        owner = registry.owner(product.layout)
        assert owner is not None
        weight = owner.unpack(weight, product.n, product.k)
    return _cotangent(product, g, sizes, weight), None, None


_apply.defvjp(_forward, _backward)


def _cotangent(product: Product, g: jax.Array, sizes: Any, weight: Any) -> jax.Array:
    def tile(rows: tuple[jax.Array, ...], weight: tuple[jax.Array, ...]) -> jax.Array:
        values = formats.decode_packed(weight[0], formats.scale_factors(weight[1]), g.dtype)
        return contract(rows[0], values[:, : product.k].T).astype(product.x_dtype)

    # FP4 weights are exact in bfloat16, and so are its own cotangents; others stay float32.
    g = g if g.dtype == jnp.bfloat16 else g.astype(jnp.float32)
    if product.kind == "dense":
        return tile((g,), weight)
    return by_group(product, (g,), sizes, weight, tile, product.k, product.x_dtype)
