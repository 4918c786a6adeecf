"""Checks that the public products share, each with one clear error."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jax_w4a8.activations import QuantizedActivation, check_block
from jax_w4a8.backends import current
from jax_w4a8.checks import as_array, float_array, float_dtype
from jax_w4a8.ops.gradient import differentiable_product
from jax_w4a8.ops.primitives import Operands, bind_product
from jax_w4a8.product import Kind, Product, blocks_along
from jax_w4a8.weights import QuantizedWeight


@dataclasses.dataclass(frozen=True)
class Activations:
    """Checked activations: one float array, or codes and scales."""

    arrays: tuple[jax.Array, ...]
    block: int
    dtype: np.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the activations, ``(..., K)``."""
        return self.arrays[0].shape

    @property
    def quantized(self) -> bool:
        """Whether they are codes and scales."""
        return len(self.arrays) == 2

    def reshape(self, *lead: int) -> Activations:
        """The same activations with other leading dimensions."""
        arrays = tuple(a.reshape(*lead, a.shape[-1]) for a in self.arrays)
        return dataclasses.replace(self, arrays=arrays)


def check_floats(x: Any, name: str = "x") -> jax.Array:
    """``x`` as a JAX array of one of the float dtypes that can be quantised."""
    if isinstance(x, QuantizedWeight | QuantizedActivation):
        raise TypeError(f"{name}: expected a float array [..., K], got {x!r}")
    x = jnp.asarray(float_array(x, name, "[..., K]"))
    if x.ndim < 1:
        raise ValueError(f"{name}: expected shape [..., K], got a scalar")
    return x


def check_activations(x: Any, block: int | str | None) -> Activations:
    """``x`` ready for a product, quantised already or not."""
    if isinstance(x, QuantizedActivation):
        own = check_block(x.block)
        if block is not None and check_block(block) != own:
            raise ValueError(
                f"block: x was quantised with block={x.block!r}, got block={block!r}; "
                "leave block out, or quantise x again"
            )
        _check_codes(x, own)
        return Activations((x.codes, x.scales), own, np.dtype(x.dtype))
    x = check_floats(x)
    return Activations((x,), check_block(128 if block is None else block), np.dtype(x.dtype))


def _check_codes(x: QuantizedActivation, block: int) -> None:
    codes, scales = x.codes, x.scales
    if codes.dtype.name != "float8_e4m3fn" or scales.dtype.name != "uint8":
        raise TypeError(
            "x: expected codes of dtype float8_e4m3fn and scales of dtype uint8, got "
            f"{codes.dtype} and {scales.dtype}"
        )
    expected = (*codes.shape[:-1], blocks_along(codes.shape[-1], block))
    if scales.shape != expected:
        raise ValueError(
            f"x: expected scales of shape {expected} for codes {codes.shape} and "
            f"block={x.block!r}, got {scales.shape}"
        )


def check_weight(w: Any, rank: int, op: str) -> QuantizedWeight:
    """``w`` as a ``QuantizedWeight`` of ``rank`` logical dimensions."""
    if not isinstance(w, QuantizedWeight):
        kind = f"{w.dtype} array" if hasattr(w, "dtype") else type(w).__name__
        raise TypeError(
            f"w: expected a QuantizedWeight, got {kind}; quantise it with jax_w4a8.quantize(w)"
        )
    if w.ndim != rank:
        form = "[K, N]" if rank == 2 else "[E, K, N]"
        other = "grouped_dot or masked_grouped_dot" if rank == 2 else "dot"
        raise ValueError(
            f"w: {op} expects a weight {form}, got shape {w.shape}; "
            f"use jax_w4a8.{other}, or vmap over the leading dimensions"
        )
    return w


def check_sizes(sizes: Any, groups: int, name: str) -> jax.Array:
    """Group sizes as int32 ``[E]``."""
    sizes = as_array(sizes, name, f"int32 [{groups}]")
    if not jnp.issubdtype(sizes.dtype, jnp.integer):
        raise TypeError(f"{name}: expected int32 [{groups}], got dtype {sizes.dtype}")
    if tuple(sizes.shape) != (groups,):
        raise ValueError(
            f"{name}: expected shape [{groups}], one number for each expert of w, got "
            f"{tuple(sizes.shape)}"
        )
    if sizes.dtype.itemsize >= 4 and sizes.dtype != np.int32:
        # What int32 does not hold is more than there are rows, or negative: kept so, not wrapped.
        xp = np if isinstance(sizes, np.ndarray) else jnp
        sizes = xp.clip(sizes, 0, np.iinfo(np.int32).max)
    return jnp.asarray(sizes.astype(np.int32))


def run(
    kind: Kind,
    x: Activations,
    sizes: jax.Array | None,
    w: QuantizedWeight,
    out_dtype: jax.typing.DTypeLike | None,
) -> jax.Array:
    """Computes one product of checked operands, x ``[M, K]`` or ``[E, Mmax, K]``."""
    if x.shape[-1] != w.k:
        raise ValueError(
            f"x: expected a last dimension of K = {w.k} to match w {w.shape}, got shape {x.shape}"
        )
    out = x.dtype if out_dtype is None else float_dtype(out_dtype, "out_dtype")
    product = Product(
        kind=kind,
        m=x.shape[-2],
        n=w.n,
        k=w.k,
        groups=w.lead[0] if w.lead else 1,
        block=x.block,
        layout=w.layout,
        x_dtype=np.dtype(x.arrays[0].dtype),
        out_dtype=out,
    )
    if 0 in (*product.out_shape, product.k, product.groups):
        return jnp.zeros(product.out_shape, out)
    operands = Operands(x.arrays, sizes, w.arrays)
    if x.quantized:
        return bind_product(product, operands, current())
    return differentiable_product(product, operands, current())
