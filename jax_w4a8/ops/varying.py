"""Keeps track of the mesh axes that values vary over inside ``shard_map``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.core import ShapedArray


def result_aval(shape: tuple[int, ...], dtype: Any, operands: Sequence[Any]) -> ShapedArray:
    """The abstract result of a primitive: it varies over every axis that an operand varies over."""
    aval = ShapedArray(shape, jax.numpy.dtype(dtype))
    axes = varying_axes(operands)
    if not axes:
        return aval
    return aval.update(manual_axis_type=aval.manual_axis_type.update(varying=axes))


def varying_axes(values: Sequence[Any]) -> frozenset[str]:
    """The mesh axes that any of ``values`` (arrays or abstract values) varies over."""
    types = (jax.typeof(v) if not hasattr(v, "manual_axis_type") else v for v in values)
    return frozenset().union(*(t.manual_axis_type.varying for t in types))


def vary_like(x: jax.Array, others: Sequence[Any]) -> jax.Array:
    """``x`` made to vary over the axes of ``others`` too; its gradient is then summed over them."""
    missing = varying_axes(others) - varying_axes([x])
    return jax.lax.pcast(x, tuple(sorted(missing)), to="varying") if missing else x
