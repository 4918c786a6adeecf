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
from jax_w4a8.product import Product, blocks_along
from jax_w4a8.varying import result_aval

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
    return product_p.bind(*operands.flat(), product=product, backend=backend)


def bind_quantize(x: jax.Array, block: int, backend: str) -> Arrays:
    """Codes and scales of ``x`` ``[..., K]``; every backend gives the same bits."""
    codes, scales = quantize_p.bind(x, block=block, backend=backend)
    return codes, scales


@product_p.def_abstract_eval
def _product_aval(*operands: Any, product: Product, backend: str) -> Any:
    return result_aval(product.out_shape, product.out_dtype, operands)


@quantize_p.def_abstract_eval
def _quantize_aval(x: Any, *, block: int, backend: str) -> Any:
    codes = result_aval(x.shape, jnp.float8_e4m3fn, [x])
    blocks = blocks_along(x.shape[-1], block)
    return codes, result_aval((*x.shape[:-1], blocks), jnp.uint8, [x])


def _run_product(*flat: Any, product: Product, backend: str, platform: str) -> jax.Array:
    operands = Operands.split(product, flat)
    chosen = backends.choose(backend, product, platform)
    weight = operands.weight
    if product.layout not in chosen.layouts:
        codes, scales = weight
        weight = chosen.pack(codes, scales, product.n, product.k)
        product = dataclasses.replace(product, layout=chosen.layouts[0])
    return chosen.product(product, operands.x, operands.sizes, weight)


def _run_quantize(x: Any, *, block: int, backend: str, platform: str) -> Arrays:
    product = quantizing(x.shape, x.dtype, block)
    return backends.choose(backend, product, platform).quantize(x, block)


def quantizing(shape: tuple[int, ...], dtype: Any, block: int) -> Product:
    """The product by which a backend is chosen to quantise ``x`` of ``shape`` and ``dtype``."""
    rows = int(np.prod(shape[:-1], dtype=np.int64))
    return Product("dense", rows, 1, shape[-1], 1, block, "plain", dtype, np.dtype("float32"))


def _register(primitive: Primitive, run: Callable[..., Any]) -> None:
    """Gives ``primitive`` its lowerings, its evaluation outside jit, and nothing else."""

    def rule(platform: str) -> Callable[..., Any]:
        def lower(ctx: Any, *operands: Any, **params: Any) -> Any:
            function = functools.partial(run, platform=platform, **params)
            lowered = mlir.lower_fun(function, multiple_results=primitive.multiple_results)
            return lowered(ctx, *operands)

        return lower

    for platform in PLATFORMS:
        mlir.register_lowering(primitive, rule(platform), platform=platform)

    @functools.partial(jax.jit, static_argnames=("params",))
    def evaluate(*operands: Any, params: tuple[tuple[str, Any], ...]) -> Any:
        return primitive.bind(*operands, **dict(params))

    primitive.def_impl(lambda *operands, **params: evaluate(*operands, params=(*params.items(),)))


_register(product_p, _run_product)
_register(quantize_p, _run_quantize)


def _batch_quantize(args: Sequence[Any], dims: Sequence[int], **params: Any) -> Any:
    (x,) = args
    moved = jnp.moveaxis(x, dims[0], 0)
    return quantize_p.bind(moved, **params), (0, 0)


def _batch_product(
    args: Sequence[Any], dims: Sequence[Any], *, product: Product, backend: str
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
        return product_p.bind(*flat, product=product, backend=backend)

    return jax.lax.map(one, [a for a, m in zip(front, mapped, strict=True) if m])
