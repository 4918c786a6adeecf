"""Splits products over the devices of a mesh, under ``jit`` with sharded operands.

XLA cannot look into a custom call, and gathers its operands on every device; a loop over experts in
plain JAX would gather all weights. Here XLA learns which dimensions belong together (an einsum with
a few dimensions that must stay whole), and each device computes the product of its own pieces:
along M, N and the experts of a masked product without communication, along K and the experts of a
grouped one with one sum of float32 results.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from jax_w4a8.formats import WEIGHT_BLOCK
from jax_w4a8.product import Product
from jax_w4a8.varying import varying_axes

Axes = tuple[str, ...]
Function = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Rule:
    """Which dimensions of operands and results are the same one.

    Attributes:
      operands, results: a name for each dimension of each array.
      sizes: length of every dimension that may be split.
      units: the length that its pieces must be a multiple of.
    """

    operands: tuple[tuple[str, ...], ...]
    results: tuple[tuple[str, ...], ...]
    sizes: Mapping[str, int]
    units: Mapping[str, int]

    def __str__(self) -> str:
        operands, results = (
            ", ".join(" ".join(names) for names in arrays)
            for arrays in (self.operands, self.results)
        )
        return f"{operands} -> {results}"

    @property
    def whole(self) -> tuple[str, ...]:
        """The dimensions that are never split."""
        names = dict.fromkeys(n for array in (*self.operands, *self.results) for n in array)
        return tuple(n for n in names if n not in self.sizes)

    def axes(self, mesh: Mesh, operands: Sequence[Any], results: Sequence[Any]) -> dict[str, Axes]:
        """The mesh axes of every dimension, from the specs that XLA proposes.

        Results come first, so that the contraction takes only axes that nothing else wants.
        """
        chosen: dict[str, Axes] = {}
        taken: set[str] = set()
        arrays = (
            *zip(self.results, results, strict=True),
            *zip(self.operands, operands, strict=True),
        )
        for names, spec in arrays:
            for name, entry in zip(names, spec, strict=True):
                axes = (entry,) if isinstance(entry, str) else tuple(entry or ())
                if name in chosen or not axes or name not in self.sizes or taken & set(axes):
                    continue
                if self.sizes[name] % (self.units[name] * _shards(mesh, axes)) == 0:
                    chosen[name] = axes
                    taken |= set(axes)
        return chosen


def split(rule: Rule, piece: Callable[[Mesh | None, Mapping[str, Axes]], Function]) -> Function:
    """A function of the whole arrays that each device computes for its pieces.

    Args:
      rule: what may be split.
      piece: given the mesh and the axes over which each dimension is split, the function of one
        device's operands; the function of the whole ones for no mesh and no axes.
    """

    def whole(*operands: Any) -> Any:
        return piece(None, {})(*operands)

    def partition(mesh: Mesh, operands: Any, results: Any) -> Any:
        flat_results, tree = jax.tree.flatten(results)
        axes = rule.axes(mesh, [_spec(a) for a in operands], [_spec(a) for a in flat_results])

        def shardings(arrays: tuple[tuple[str, ...], ...]) -> list[NamedSharding]:
            specs = (PartitionSpec(*(axes.get(n) for n in names)) for names in arrays)
            return [NamedSharding(mesh, spec) for spec in specs]

        of_results = jax.tree.unflatten(tree, shardings(rule.results))
        return mesh, piece(mesh, axes), of_results, tuple(shardings(rule.operands))

    function = custom_partitioning(whole)
    function.def_partition(partition, sharding_rule=str(rule), need_replication_factors=rule.whole)
    return function


def split_product(product: Product, ranks: Sequence[int], run: Function) -> Function:
    """``run(product, *operands)`` split over M, N, K and experts as far as ``product`` allows."""
    rule = product_rule(product, ranks)

    def piece(mesh: Mesh | None, axes: Mapping[str, Axes]) -> Function:
        if mesh is None:
            return functools.partial(run, product)
        of_experts = axes.get("e", ()) if product.kind == "grouped" else ()
        summed = (*axes.get("k", ()), *of_experts)
        part = dataclasses.replace(
            product,
            m=product.m // _shards(mesh, axes.get("m", ())),
            n=product.n // _shards(mesh, axes.get("n", ())),
            k=product.k // _shards(mesh, axes.get("k", ())),
            groups=product.groups // _shards(mesh, axes.get("e", ())),
            out_dtype=jnp.dtype("float32") if summed else product.out_dtype,
        )
        compute: Function = functools.partial(run, part)
        if of_experts:
            compute = _own_groups(part, of_experts, compute)
        if summed:
            return lambda *flat: jax.lax.psum(compute(*flat), summed).astype(product.out_dtype)
        return compute

    return split(rule, piece)


def _own_groups(part: Product, axes: Axes, compute: Function) -> Function:
    """``compute`` for the groups of this device's experts, given all rows and all sizes."""

    def own(*operands: jax.Array) -> jax.Array:
        count = 2 if part.quantized_x else 1
        x, sizes, weight = operands[:count], operands[count], operands[count + 1 :]
        ends = jnp.minimum(jnp.cumsum(jnp.maximum(sizes, 0)), part.m)
        bounds = jnp.concatenate([jnp.zeros_like(ends[:1]), ends])
        first = jax.lax.axis_index(axes) * part.groups
        bounds = jax.lax.dynamic_slice_in_dim(bounds, first, part.groups + 1)
        # The rows in front of this device's own come last meanwhile, past every group.
        x = tuple(jnp.roll(a, -bounds[0], axis=0) for a in x)
        return jnp.roll(compute(*x, jnp.diff(bounds), *weight), bounds[0], axis=0)

    return own


def product_rule(product: Product, ranks: Sequence[int]) -> Rule:
    """What may be split in ``product``, whose operands have ``ranks`` dimensions."""
    sizes = {"n": product.n, "k": product.k}
    units = {"n": 1, "k": math.lcm(product.block, WEIGHT_BLOCK)}
    experts = () if product.kind == "dense" else ("e",)
    if product.kind == "dense":
        sizes["m"], units["m"] = product.m, 1
    else:
        sizes["e"], units["e"] = product.groups, 1
    rows = ("e", "rows") if product.kind == "masked" else ("m",)
    if product.block == 0:
        # One scale for a whole row: nobody knows it who has only a part of the row.
        del sizes["k"]
    x = [(*rows, "k")] * (2 if product.quantized_x else 1)
    if product.quantized_x and product.block == 0:
        x[1] = (*rows, "one")
    # Where a group's rows lie depends on the sizes of all groups before it.
    counts = {"dense": [], "grouped": [("counts",)], "masked": [("e",)]}[product.kind]
    weight = [(*experts, "n", "k")] * 2
    if product.layout != "plain":
        # Only its kernels know what the dimensions of a packed weight mean.
        del sizes["n"]
        sizes.pop("k", None)
        weight = [
            (*experts, *(f"w{i}d{j}" for j in range(rank - len(experts))))
            for i, rank in enumerate(ranks[len(x) + len(counts) :])
        ]
    return Rule((*x, *counts, *weight), ((*rows, "n"),), sizes, units)


def split_quantize(shape: tuple[int, ...], block: int, run: Function) -> Function:
    """``run(x)``, which gives the codes and scales of ``x`` of ``shape``, split over all of it."""
    names = tuple(f"d{i}" for i in range(len(shape) - 1))
    sizes = dict(zip(names, shape, strict=False))
    units = dict.fromkeys(names, 1)
    last = "k" if block else "one"
    if block:
        sizes["k"], units["k"] = shape[-1], block
    rule = Rule(((*names, "k"),), ((*names, "k"), (*names, last)), sizes, units)
    return split(rule, lambda mesh, axes: run)


def needs_devices(operands: Sequence[Any]) -> Any:
    """A parameter with which a primitive is lowered knowing the devices and their mesh, or None.

    JAX tells a lowering rule about them only if the traced function contains an equation that asks
    for them, in a parameter if nowhere else.
    """
    alone = jax.device_count() == 1 or varying_axes(operands)
    return None if alone else _asks_for_devices()


@functools.cache
def _asks_for_devices() -> Any:
    function = custom_partitioning(lambda x: x)
    function.def_partition(lambda mesh, x, y: None, sharding_rule=" -> ")
    return jax.make_jaxpr(function)(0.0)


def is_split(context: Any) -> bool:
    """Whether XLA shares what is lowered in ``context`` out over several devices.

    Not in a ``shard_map``, where every device computes its own product already, and not for
    export, since how to split is a Python function of this process.
    """
    module = context.module_context
    spread = module.axis_context
    return bool(
        getattr(spread, "num_devices", 1) > 1
        and getattr(spread, "device_assignment", None) is not None
        and getattr(spread, "abstract_mesh", None) is not None
        and not module.lowering_parameters.for_export
        and getattr(jax.config, "jax_use_shardy_partitioner", True)
    )


def _spec(array: Any) -> Sequence[Any]:
    return (None,) * len(array.shape) if array.sharding is None else array.sharding.spec


def _shards(mesh: Mesh, axes: Axes) -> int:
    return math.prod(mesh.shape[axis] for axis in axes)
