"""Experts spread over a mesh: tokens travel to their experts and back, weights stay where they are.

Along ``expert_axis`` every device holds ``E / P`` experts and a share of the tokens. Rows go out by
an all-to-all over buffers of ``capacity`` rows for each pair of devices, and come back by another.
Where routing is skewed and more rows have one destination than its buffer holds, the exchange is
done again for what is left, in as many rounds as the fullest pair of devices needs: no token is
dropped, and a balanced routing takes one round.

Along ``tensor_axis`` each expert is split: gate/up along its output, down along its contraction,
with one sum over the axis at the end.

Memory of a device, whatever the skew: four buffers of ``P * capacity`` rows (sent, received, and
the results' ones), and the experts' own for ``P * capacity`` rows, which the masked form pads to as
many for each of the ``E / P`` experts. A gradient runs each round anew and keeps none of them.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from jax_w4a8.activations import check_block
from jax_w4a8.layers.experts import Experts, MoEConfig, Router, mixture, route, run_experts
from jax_w4a8.layers.moe import W4A8MoE
from jax_w4a8.layers.routing import NOTHING, permute, unpermute
from jax_w4a8.varying import vary_like
from jax_w4a8.weights import QuantizedWeight


def shard_experts(
    layer: W4A8MoE, mesh: Mesh, *, expert_axis: str = "expert", tensor_axis: str | None = None
) -> W4A8MoE:
    """Places the weights of a layer on a mesh, in place: experts apart, all else on every device.

    With a ``tensor_axis`` gate and up are made to alternate, so that each device's part of the
    output holds whole pairs; ``layer.config.interleaved`` says so from then on.

    Args:
      layer: the layer, its weights in the plain layout if there is a ``tensor_axis``.
      mesh: the mesh.
      expert_axis: axis over which the experts are spread.
      tensor_axis: axis over which each expert is split, or None.

    Returns:
      ``layer`` itself.

    Raises:
      ValueError: the mesh has no such axis, or the layer cannot be divided so.
    """
    _check(layer, mesh, expert_axis, tensor_axis)
    if tensor_axis is not None and not layer.config.interleaved:
        _interleave(layer)
    experts = layer.experts()
    specs = _specs(experts, expert_axis, tensor_axis)
    placed = jax.tree.map(lambda a, s: jax.device_put(a, NamedSharding(mesh, s)), experts, specs)
    everywhere = NamedSharding(mesh, PartitionSpec())
    nnx.update(layer, jax.device_put(nnx.state(layer), everywhere))
    for field in dataclasses.fields(Experts):
        if (value := getattr(placed, field.name)) is not None:
            getattr(layer, field.name).set_value(value)
    return layer


def expert_parallel(
    layer: W4A8MoE,
    x: jax.Array,
    *,
    mesh: Mesh,
    expert_axis: str = "expert",
    tensor_axis: str | None = None,
    capacity: int | None = None,
) -> jax.Array:
    """``layer(x)`` with the experts spread over a mesh by ``shard_experts``.

    Tokens are spread over all axes of the mesh but ``tensor_axis``; their number need not be a
    multiple of the devices. Differentiable like the layer itself. Call it inside ``jax.jit``.

    Args:
      layer: the layer.
      x: ``[..., D]``.
      mesh, expert_axis, tensor_axis: as given to ``shard_experts``.
      capacity: rows that a device sends to another in one round; by default twice its even share.
        Smaller buffers take less memory and more rounds when routing is skewed.

    Returns:
      ``[..., N]``, equal to ``layer(x)`` up to the order of float32 sums.

    Raises:
      ValueError: the mesh has no such axis, the layer cannot be divided so, or ``capacity`` is not
        positive.
    """
    _check(layer, mesh, expert_axis, tensor_axis)
    config = layer.config
    if tensor_axis is not None and not config.interleaved:
        raise ValueError(
            "layer: expected gate and up to alternate for a tensor_axis; call "
            "shard_experts(layer, mesh, tensor_axis=...) first"
        )
    if capacity is not None and capacity < 1:
        raise ValueError(f"capacity: expected a positive number of rows, got {capacity}")
    token_axes = tuple(a for a in mesh.axis_names if a != tensor_axis)
    devices = math.prod(mesh.shape[a] for a in token_axes)
    experts, router = layer.experts(), layer.routing()
    exchange = _Exchange(config, expert_axis, token_axes, tensor_axis, mesh.shape[expert_axis])
    spread = PartitionSpec(token_axes)

    def local(x: jax.Array, used: jax.Array, router: Router, experts: Experts) -> jax.Array:
        weights, ids = route(x, router, config)
        ids = jnp.where(used[:, None], ids, NOTHING)
        return exchange.run(x.astype(config.dtype_of(x)), weights, ids, experts, capacity)

    lead = (*jnp.shape(x)[:-1], 1)

    def routed(x: jax.Array) -> jax.Array:
        tokens, padding = x.shape[0], -x.shape[0] % devices
        if not tokens:
            return jnp.zeros((0, experts.down.n), jnp.float32)
        specs = (spread, spread, PartitionSpec(), _specs(experts, expert_axis, tensor_axis))
        used = jnp.arange(tokens + padding) < tokens
        operands = (jnp.pad(x, ((0, padding), (0, 0))), used, router, experts)
        run = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=spread)
        y = run(*(_place(a, mesh, s) for a, s in zip(operands, specs, strict=True)))
        # Typed shardings cannot follow where devices do not divide the dimensions of the result.
        return _place(y, mesh, PartitionSpec())[:tokens] if lead[0] % devices else y

    return mixture(x, routed, layer.shared, config)


@dataclasses.dataclass(frozen=True)
class _Exchange:
    """What one device does inside ``shard_map``; ``peers`` is the size of ``expert_axis``."""

    config: MoEConfig
    expert_axis: str
    token_axes: tuple[str, ...]
    tensor_axis: str | None
    peers: int

    def run(
        self,
        x: jax.Array,
        weights: jax.Array,
        ids: jax.Array,
        experts: Experts,
        capacity: int | None,
    ) -> jax.Array:
        """``[T, D]`` of this device to float32 ``[T, N]``, in as many rounds as it takes."""
        assignments, local = ids.size, experts.gate_up.shape[0]
        if capacity is None:
            capacity = -(-2 * assignments // self.peers)
        capacity = min(capacity, assignments)
        owners = jnp.where(ids < 0, ids, ids // local).reshape(-1, 1)
        y = jnp.zeros((x.shape[0], experts.down.n), jnp.float32)
        y = vary_like(y, jax.tree.leaves((x, weights, ids, experts)))

        @jax.checkpoint
        def serve(first: jax.Array, x: jax.Array, weights: jax.Array, experts: Experts) -> Any:
            return self._round(first, x, weights, ids, owners, experts, capacity)

        def step(y: jax.Array, index: jax.Array) -> tuple[jax.Array, None]:
            def more(y: jax.Array) -> jax.Array:
                return y + serve(index * capacity, x, weights, experts)

            return lax.cond(index < rounds, more, lambda y: y, y), None

        # Every device takes part in every round, so all must count the same.
        fullest = jnp.max(jnp.sum(owners == jnp.arange(self.peers), axis=0))
        rounds = -(-lax.pmax(fullest, self.token_axes) // capacity)
        most = -(-assignments // capacity)
        y, _ = lax.scan(step, y, jnp.arange(most))
        return y if self.tensor_axis is None else lax.psum(y, self.tensor_axis)

    def _round(
        self,
        first: jax.Array,
        x: jax.Array,
        weights: jax.Array,
        ids: jax.Array,
        owners: jax.Array,
        experts: Experts,
        capacity: int,
    ) -> jax.Array:
        """Serves the rows ``first`` to ``first + capacity`` of each destination."""
        local = experts.gate_up.shape[0]
        index = jnp.arange(ids.size, dtype=jnp.int32)
        assignment, permutation = permute(index, owners, self.peers, capacity=capacity, first=first)
        used = jnp.arange(capacity) < permutation.counts[:, None]
        expert = jnp.where(used, ids.reshape(-1)[assignment] % local, NOTHING)
        rows = self._exchange(x[assignment // ids.shape[1]])
        expert = self._exchange(expert).reshape(-1, 1)
        # Partial sums and results with a bias were not rounded to the dtype of x yet.
        partial = self.tensor_axis is not None
        exact = partial or experts.down_bias is not None
        y = run_experts(
            rows.reshape(-1, x.shape[1]),
            jnp.ones(expert.shape, jnp.float32),
            expert,
            self._with_bias_once(experts),
            self.config,
            out_dtype=jnp.float32 if partial else None,
        ).astype(jnp.float32 if exact else x.dtype)
        y = self._exchange(y.reshape(self.peers, capacity, -1))
        rows_of_tokens = permutation.rows.reshape(ids.shape)
        return unpermute(y, dataclasses.replace(permutation, rows=rows_of_tokens), weights)

    def _exchange(self, a: jax.Array) -> jax.Array:
        return lax.all_to_all(a, self.expert_axis, 0, 0, tiled=True)

    def _with_bias_once(self, experts: Experts) -> Experts:
        if self.tensor_axis is None or experts.down_bias is None:
            return experts
        is_first = lax.axis_index(self.tensor_axis) == 0
        return dataclasses.replace(experts, down_bias=jnp.where(is_first, experts.down_bias, 0))


def _specs(experts: Experts, expert_axis: str, tensor_axis: str | None) -> Experts:
    """How each array of ``experts`` is divided."""
    n, k = PartitionSpec(expert_axis, tensor_axis), PartitionSpec(expert_axis, None, tensor_axis)
    parts = {"gate_up": n, "down": k, "gate_up_bias": n, "down_bias": PartitionSpec(expert_axis)}
    specs = {
        name: jax.tree.map(lambda _, part=part: part, getattr(experts, name))
        for name, part in parts.items()
    }
    return Experts(**specs)


def _place(tree: Any, mesh: Mesh, specs: Any) -> Any:
    """``tree`` divided by ``specs``, where the mesh has types that must say so."""
    if AxisType.Explicit not in mesh.axis_types:
        return tree
    if isinstance(specs, PartitionSpec):
        specs = jax.tree.map(lambda _: specs, tree)
    return jax.tree.map(lambda a, s: jax.sharding.reshard(a, NamedSharding(mesh, s)), tree, specs)


def _interleave(layer: W4A8MoE) -> None:
    width = layer.gate_up.get_value().n
    order = jnp.arange(width).reshape(2, width // 2).T.reshape(-1)
    gate_up: QuantizedWeight = layer.gate_up.get_value()
    layer.gate_up.set_value(jax.tree.map(lambda a: a[:, order], gate_up))
    if layer.gate_up_bias is not None:
        layer.gate_up_bias.set_value(layer.gate_up_bias[...][:, order])
    layer.config = dataclasses.replace(layer.config, interleaved=True)


def _check(layer: Any, mesh: Mesh, expert_axis: str, tensor_axis: str | None) -> None:
    if not isinstance(layer, W4A8MoE):
        raise TypeError(f"layer: expected a W4A8MoE, got {type(layer).__name__}")
    for name, axis in (("expert_axis", expert_axis), ("tensor_axis", tensor_axis)):
        if axis is not None and axis not in mesh.axis_names:
            raise ValueError(f"{name}: expected an axis of the mesh {mesh.shape}, got {axis!r}")
    count, hidden, _ = layer.down.get_value().shape
    peers = mesh.shape[expert_axis]
    if count % peers:
        raise ValueError(
            f"layer: expected a number of experts that {peers} devices of {expert_axis!r} divide, "
            f"got {count}"
        )
    if tensor_axis is None:
        return
    parts, block = mesh.shape[tensor_axis], check_block(layer.config.block)
    layouts = {w.get_value().layout for w in (layer.gate_up, layer.down)}
    if layouts != {"plain"}:
        raise ValueError(
            f"layer: a tensor_axis needs weights in the plain layout, got {sorted(layouts)}; "
            "divide them before they are packed"
        )
    if parts > 1 and (not block or hidden % (parts * block)):
        raise ValueError(
            f"layer: to divide experts by {parts} along their width of {hidden}, a device's part "
            f"must be whole activation blocks, got block={layer.config.block!r}; use block=32, or "
            "fewer devices"
        )
