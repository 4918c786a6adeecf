"""Keeps track of the mesh axes that values vary over inside ``shard_map``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec


def result_aval(shape: tuple[int, ...], dtype: Any, operands: Sequence[Any]) -> Any:
    """The abstract result of a primitive: it varies over every axis that an operand varies over.

    Under a mesh with explicit axes its type says replicated.
    """
    axes = varying_axes(operands)
    like = next((a for a in operands if varying_axes([a])), operands[0])
    replicated = NamedSharding(like.sharding.mesh, PartitionSpec(*(None,) * len(shape)))
    return like.update(
        shape=shape,
        dtype=jax.numpy.dtype(dtype),
        weak_type=False,
        sharding=replicated,
        manual_axis_type=like.manual_axis_type.update(varying=axes),
    )


def varying_axes(values: Sequence[Any]) -> frozenset[str]:
    """The mesh axes that any of ``values`` (arrays or abstract values) varies over."""
    types = (v if hasattr(v, "manual_axis_type") else jax.typeof(v) for v in values)
    return frozenset().union(*(t.manual_axis_type.varying for t in types))


def vary_like(x: jax.Array, others: Sequence[Any]) -> jax.Array:
    """``x`` made to vary over the axes of ``others`` too; its gradient is then summed over them."""
    missing = varying_axes(others) - varying_axes([x])
    return jax.lax.pcast(x, tuple(sorted(missing)), to="varying") if missing else x
