"""The two primitives behind every product: shape rules, lowering and batching.

``product_p`` binds ``x`` (one float array, or codes and scales), the group sizes unless the product
is dense, and the weight's arrays. ``quantize_p`` binds ``x``. Both carry the name of the selected
backend; which backend computes them is decided when they are lowered.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from jax_w4a8 import backends
from jax_w4a8.backends.base import Arrays
from jax_w4a8.ops import partitioning
from jax_w4a8.product import Product, blocks_along
from jax_w4a8.varying import result_aval

Function = Callable[..., Any]

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")

product_p = Primitive("w4a8_product")
quantize_p = Primitive("w4a8_quantize")
quantize_p.multiple_results = True


@dataclasses.dataclass(frozen=True)
class Operands:
    """The operands of one product, apart."""

    x: Arrays
    sizes: jax.Array | None
    weight: Arrays

    @classmethod
    def split(cls, product: Product, flat: Sequence[Any]) -> Operands:
        """The operands of ``product`` from the flat sequence that the primitive binds."""
        x = 2 if product.quantized_x else 1
        sizes = 0 if product.kind == "dense" else 1
        return cls(tuple(flat[:x]), flat[x] if sizes else None, tuple(flat[x + sizes :]))

    def flat(self) -> Arrays:
        """The operands in the order in which the primitive binds them."""
        return (*self.x, *(() if self.sizes is None else (self.sizes,)), *self.weight)


def bind_product(product: Product, operands: Operands, backend: str) -> jax.Array:
    """``product`` of ``operands``, by ``backend`` or whatever "auto" finds for it."""
    flat = operands.flat()
    devices = partitioning.needs_devices(flat)
    return product_p.bind(*flat, product=product, backend=backend, devices=devices)


def bind_quantize(x: jax.Array, block: int, backend: str) -> Arrays:
    """Codes and scales of ``x`` ``[..., K]``; every backend gives the same bits."""
    devices = partitioning.needs_devices((x,))
    codes, scales = quantize_p.bind(x, block=block, backend=backend, devices=devices)
    return codes, scales


@product_p.def_abstract_eval
def _product_aval(*operands: Any, product: Product, **_: Any) -> Any:
    return result_aval(product.out_shape, product.out_dtype, operands)


@quantize_p.def_abstract_eval
def _quantize_aval(x: Any, *, block: int, **_: Any) -> Any:
    codes = result_aval(x.shape, jnp.float8_e4m3fn, [x])
    blocks = blocks_along(x.shape[-1], block)
    return codes, result_aval((*x.shape[:-1], blocks), jnp.uint8, [x])


def _lower_product(context: Any, platform: str, product: Product, backend: str) -> Function:
    chosen = backends.choose(backend, product, platform)

    def run(product: Product, *flat: Any) -> jax.Array:
        operands = Operands.split(product, flat)
        weight = operands.weight
        if product.layout not in chosen.layouts:
            codes, scales = weight
            weight = chosen.pack(codes, scales, product.n, product.k)
            product = dataclasses.replace(product, layout=chosen.layouts[0])
        return chosen.product(product, operands.x, operands.sizes, weight)

    if partitioning.is_split(context):
        ranks = [aval.ndim for aval in context.avals_in]
        return partitioning.split_product(product, ranks, run)
    return functools.partial(run, product)


def _lower_quantize(context: Any, platform: str, block: int, backend: str) -> Function:
    (x,) = context.avals_in
    chosen = backends.choose(backend, quantizing(x.shape, x.dtype, block), platform)
    run = functools.partial(chosen.quantize, block=block)
    if partitioning.is_split(context):
        return partitioning.split_quantize(x.shape, block, run)
    return run


def quantizing(shape: tuple[int, ...], dtype: Any, block: int) -> Product:
    """The product by which a backend is chosen to quantise ``x`` of ``shape`` and ``dtype``."""
    rows = int(np.prod(shape[:-1], dtype=np.int64))
    return Product("dense", rows, 1, shape[-1], 1, block, "plain", dtype, np.dtype("float32"))


def _register(primitive: Primitive, lower: Callable[..., Function]) -> None:
    """Gives ``primitive`` its lowerings, its evaluation outside jit, and nothing else."""

    def rule(platform: str) -> Function:
        def lower_for(context: Any, *operands: Any, devices: Any, **params: Any) -> Any:
            function = lower(context, platform, **params)
            lowered = mlir.lower_fun(function, multiple_results=primitive.multiple_results)
            return lowered(context, *operands)

        return lower_for

    for platform in PLATFORMS:
        mlir.register_lowering(primitive, rule(platform), platform=platform)

    @functools.partial(jax.jit, static_argnames=("params",))
    def evaluate(*operands: Any, params: tuple[tuple[str, Any], ...]) -> Any:
        return primitive.bind(*operands, **dict(params))

    primitive.def_impl(lambda *operands, **params: evaluate(*operands, params=(*params.items(),)))


_register(product_p, _lower_product)
_register(quantize_p, _lower_quantize)


def _batch_quantize(args: Sequence[Any], dims: Sequence[int], **params: Any) -> Any:
    (x,) = args
    moved = jnp.moveaxis(x, dims[0], 0)
    return quantize_p.bind(moved, **params), (0, 0)


def _batch_product(
    args: Sequence[Any], dims: Sequence[Any], *, product: Product, backend: str, devices: Any
) -> tuple[jax.Array, int]:
    mapped = [d is not None for d in dims]
    size = next(a.shape[d] for a, d in zip(args, dims, strict=True) if d is not None)
    front = [a if d is None else jnp.moveaxis(a, d, 0) for a, d in zip(args, dims, strict=True)]
    operands, is_mapped = Operands.split(product, front), Operands.split(product, mapped)
    if product.kind == "dense" and not any(is_mapped.weight):
        y = _fold_rows(product, operands, size, backend)
    elif product.kind == "grouped" or not any(is_mapped.weight):
        y = _one_by_one(product, front, mapped, backend)
    else:
        everything = [
            a if m else jnp.broadcast_to(a, (size, *a.shape))
            for a, m in zip(front, mapped, strict=True)
        ]
        y = _fold_groups(product, Operands.split(product, everything), size, backend)
    return y, 0


batching.primitive_batchers[quantize_p] = _batch_quantize
batching.primitive_batchers[product_p] = _batch_product


def _fold_rows(product: Product, operands: Operands, size: int, backend: str) -> jax.Array:
    """A batch over the rows of a dense product is a dense product with more rows."""
    rows = size * product.m
    x = tuple(a.reshape(rows, a.shape[-1]) for a in operands.x)
    folded = dataclasses.replace(product, m=rows)
    y = bind_product(folded, Operands(x, None, operands.weight), backend)
    return y.reshape(size, product.m, product.n)


def _fold_groups(product: Product, operands: Operands, size: int, backend: str) -> jax.Array:
    """A batch over weights is a masked product with a group for each of them."""
    groups = size * product.groups
    if product.kind == "dense":
        x, weight = operands.x, operands.weight
        sizes = jnp.full((groups,), product.m, jnp.int32)
    else:
        x, weight, sizes = jax.tree.map(
            lambda a: a.reshape(groups, *a.shape[2:]),
            (operands.x, operands.weight, operands.sizes),
        )
    folded = dataclasses.replace(product, kind="masked", groups=groups)
    y = bind_product(folded, Operands(x, sizes, weight), backend)
    return y.reshape(size, *product.out_shape)


def _one_by_one(
    product: Product, front: Sequence[Any], mapped: Sequence[bool], backend: str
) -> jax.Array:
    """Products whose groups cannot be laid end to end run one after the other."""

    def one(batched: list[Any]) -> jax.Array:
        rest = iter(batched)
        flat = [next(rest) if m else a for a, m in zip(front, mapped, strict=True)]
        return bind_product(product, Operands.split(product, flat), backend)

    return jax.lax.map(one, [a for a, m in zip(front, mapped, strict=True) if m])
