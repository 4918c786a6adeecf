"""``W4A8MoE``: a mixture of experts with FP4 weights, and ``MoE``, its float counterpart."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jax_w4a8.layers.dense import PackedWeight
from jax_w4a8.layers.experts import (
    Experts,
    Form,
    MoEConfig,
    Router,
    check_experts,
    mixture,
    route,
    run_experts,
)
from jax_w4a8.weights import QuantizedWeight, ScaleRule, quantize


class SelectionBias(nnx.Variable[jax.Array]):
    """What is added to the scores for the choice of experts only; it has no gradient."""


class _MoE(nnx.Module):
    """What the float and the FP4 layer have in common: all but the products of the experts."""

    def __init__(
        self,
        router: Any,
        gate_up: Any,
        down: Any,
        config: MoEConfig,
        *,
        router_bias: Any = None,
        selection_bias: Any = None,
        gate_up_bias: Any = None,
        down_bias: Any = None,
        shared: Callable[[jax.Array], jax.Array] | None = None,
    ):
        check_experts(router, gate_up, down, gate_up_bias, down_bias, config)
        experts = gate_up.shape[0]
        for name, bias in (("router_bias", router_bias), ("selection_bias", selection_bias)):
            if bias is not None and jnp.shape(bias) != (experts,):
                raise ValueError(f"{name}: expected shape ({experts},), got {jnp.shape(bias)}")
        self.config = config
        self.router = nnx.Param(jnp.asarray(router))
        self.router_bias = nnx.data(_param(router_bias))
        self.selection_bias = nnx.data(
            None if selection_bias is None else SelectionBias(jnp.asarray(selection_bias))
        )
        self.gate_up_bias = nnx.data(_param(gate_up_bias))
        self.down_bias = nnx.data(_param(down_bias))
        self.shared = nnx.data(shared)

    def routing(self) -> Router:
        """What chooses the experts, as a pytree."""
        return Router(self.router[...], _value(self.router_bias), _value(self.selection_bias))

    def route(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """float32 weights and int32 ids ``[..., top_k]`` of tokens ``x`` ``[..., D]``."""
        return route(jnp.asarray(x), self.routing(), self.config)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Applies the layer to tokens ``[..., D]``; returns ``[..., N]``."""

        def experts(x: jax.Array) -> jax.Array:
            return self._experts(x.astype(self.config.dtype_of(x)), *self.route(x))

        return mixture(x, experts, self.shared, self.config)

    def _experts(self, x: jax.Array, weights: jax.Array, ids: jax.Array) -> jax.Array:
        """Tokens ``[T, D]``, weights and ids ``[T, top_k]`` to float32 ``[T, N]``."""
        raise NotImplementedError

    def _others(self) -> dict[str, Any]:
        """What is neither the router nor the experts' weights, to make another layer with."""
        names = ("router_bias", "selection_bias", "gate_up_bias", "down_bias")
        values = {name: _value(getattr(self, name)) for name in names}
        return {**values, "shared": self.shared}


class W4A8MoE(_MoE):
    """A mixture of experts ``[..., D] -> [..., N]`` with FP4 experts and FP8 activations.

    Router in float32, experts chosen by ``jax_w4a8.layers.routing.top_k``, gate/up and down of all
    experts as two grouped products, weighted sum in float32::

        layer = W4A8MoE.from_float(float_layer)          # an MoE
        layer = W4A8MoE.from_arrays(router, gate_up, down, MoEConfig(top_k=2))
        y = layer(x)

    Attributes:
      router: ``nnx.Param`` ``[D, E]``.
      gate_up, down: ``PackedWeight`` with ``[E, D, 2 * I]`` and ``[E, I, N]``.
      router_bias, gate_up_bias, down_bias: ``nnx.Param`` ``[E]``, ``[E, 2 * I]`` and ``[E, N]``, or
        None.
      selection_bias: ``SelectionBias`` ``[E]``, or None.
      shared: a module ``[..., D] -> [..., N]`` that every token passes, or None.
      config: ``MoEConfig``.
    """

    def __init__(
        self,
        router: Any,
        gate_up: QuantizedWeight,
        down: QuantizedWeight,
        config: MoEConfig,
        **others: Any,
    ):
        """Makes the layer from packed weights.

        Args:
          router: floats ``[D, E]``.
          gate_up: ``[E, D, 2 * I]``, in any layout.
          down: ``[E, I, N]``, in any layout.
          config: what to compute.
          **others: ``router_bias``, ``selection_bias``, ``gate_up_bias``, ``down_bias`` and
            ``shared``, see the attributes.

        Raises:
          TypeError: ``gate_up`` or ``down`` is not a ``QuantizedWeight``.
          ValueError: shapes that do not belong together.
        """
        for name, w in (("gate_up", gate_up), ("down", down)):
            if not isinstance(w, QuantizedWeight):
                raise TypeError(
                    f"{name}: expected a QuantizedWeight, got {type(w).__name__}; quantise it with "
                    f"jax_w4a8.quantize({name}), or call W4A8MoE.from_arrays"
                )
        super().__init__(router, gate_up, down, config, **others)
        self.gate_up = PackedWeight(gate_up)
        self.down = PackedWeight(down)

    @classmethod
    def from_float(
        cls,
        layer: MoE,
        *,
        block: int | str | None = None,
        form: Form | None = None,
        rule: ScaleRule = "mse",
    ) -> W4A8MoE:
        """Quantises the experts of a float layer; all else stays as it is.

        Args:
          layer: the float layer, which is left unchanged. A ``shared`` module is shared with it.
          block, form: replace those of the layer's ``config``.
          rule: the scale rule of ``jax_w4a8.quantize``.

        Raises:
          TypeError: ``layer`` is not an ``MoE``.
          ValueError: the experts hold a NaN or an infinity.
        """
        if not isinstance(layer, MoE):
            raise TypeError(
                f"layer: expected jax_w4a8.layers.moe.MoE, got {type(layer).__name__}; "
                "W4A8MoE.from_arrays takes the arrays of any other layer"
            )
        changes: dict[str, Any] = {
            k: v for k, v in (("block", block), ("form", form)) if v is not None
        }
        config = dataclasses.replace(layer.config, **changes)
        arrays = (layer.router[...], layer.gate_up[...], layer.down[...])
        return cls.from_arrays(*arrays, config, rule=rule, **layer._others())

    @classmethod
    def from_arrays(
        cls,
        router: Any,
        gate_up: Any,
        down: Any,
        config: MoEConfig,
        *,
        rule: ScaleRule = "mse",
        **others: Any,
    ) -> W4A8MoE:
        """Quantises float experts.

        Args:
          router: floats ``[D, E]``.
          gate_up: floats ``[E, D, 2 * I]``, or the two halves ``[E, D, I]`` as a tuple.
          down: floats ``[E, I, N]``.
          config: what to compute; ``interleaved`` says how gate and up lie in ``gate_up``.
          rule: the scale rule of ``jax_w4a8.quantize``.
          **others: see the constructor.

        Raises:
          TypeError, ValueError: as the constructor and ``jax_w4a8.quantize``.
        """
        if isinstance(gate_up, tuple):
            gate_up = join_gate_up(*gate_up, interleaved=config.interleaved)
        return cls(
            router, quantize(gate_up, rule=rule), quantize(down, rule=rule), config, **others
        )

    def experts(self) -> Experts:
        """The weights of the experts, as a pytree."""
        return Experts(
            self.gate_up.get_value(),
            self.down.get_value(),
            _value(self.gate_up_bias),
            _value(self.down_bias),
        )

    def _experts(self, x: jax.Array, weights: jax.Array, ids: jax.Array) -> jax.Array:
        return run_experts(x, weights, ids, self.experts(), self.config)


class MoE(_MoE):
    """The float counterpart of ``W4A8MoE``, to train before quantising.

    Every expert computes every token, with weight zero where it was not chosen: two plain dense
    products over all experts, quick to differentiate, ``E / top_k`` times the work. ``block`` and
    ``form`` of ``config`` have no effect.

    Attributes:
      gate_up, down: ``nnx.Param`` ``[E, D, 2 * I]`` and ``[E, I, N]``.
      router, router_bias, selection_bias, gate_up_bias, down_bias, shared, config: as ``W4A8MoE``.
    """

    def __init__(self, router: Any, gate_up: Any, down: Any, config: MoEConfig, **others: Any):
        """Makes the layer from float arrays; see ``W4A8MoE`` for their shapes and ``others``."""
        super().__init__(router, gate_up, down, config, **others)
        self.gate_up = nnx.Param(jnp.asarray(gate_up))
        self.down = nnx.Param(jnp.asarray(down))

    @classmethod
    def init(
        cls,
        features: int,
        hidden: int,
        experts: int,
        config: MoEConfig,
        *,
        rngs: nnx.Rngs,
        use_bias: bool = False,
        dtype: jax.typing.DTypeLike = jnp.float32,
        **others: Any,
    ) -> MoE:
        """A layer ``[..., features] -> [..., features]`` with fresh weights.

        Args:
          features: D, and N too.
          hidden: I.
          experts: E.
          config: what to compute.
          rngs: ``rngs.params`` is used.
          use_bias: whether the experts have biases (zero at first).
          dtype: dtype of the parameters.
          **others: see the constructor.
        """
        dense = nnx.initializers.lecun_normal(batch_axis=())
        batched = nnx.initializers.lecun_normal(batch_axis=(0,))
        if use_bias:
            others["gate_up_bias"] = jnp.zeros((experts, 2 * hidden), dtype)
            others["down_bias"] = jnp.zeros((experts, features), dtype)
        return cls(
            dense(rngs.params(), (features, experts), dtype),
            batched(rngs.params(), (experts, features, 2 * hidden), dtype),
            batched(rngs.params(), (experts, hidden, features), dtype),
            config,
            **others,
        )

    def _experts(self, x: jax.Array, weights: jax.Array, ids: jax.Array) -> jax.Array:
        experts = self.router.shape[1]
        chosen = ids[..., None] == jnp.arange(experts)
        share = jnp.sum(jnp.where(chosen, weights[..., None], 0.0), axis=1)
        h = _dense("td,edn->ten", x, self.gate_up[...])
        if self.gate_up_bias is not None:
            h = h + self.gate_up_bias[...].astype(jnp.float32)
        a = self.config.activate(h) * share[..., None]
        y = _dense("tei,ein->tn", a.astype(x.dtype), self.down[...])
        if self.down_bias is not None:
            y = y + _dense("te,en->tn", share, self.down_bias[...])
        return y


def join_gate_up(gate: Any, up: Any, *, interleaved: bool = False) -> jax.Array:
    """Gate and up ``[..., I]`` as one array ``[..., 2 * I]``, side by side or alternating."""
    if jnp.shape(gate) != jnp.shape(up):
        raise ValueError(f"up: expected gate's shape {jnp.shape(gate)}, got {jnp.shape(up)}")
    if not interleaved:
        return jnp.concatenate([gate, up], axis=-1)
    return jnp.stack([gate, up], axis=-1).reshape(*jnp.shape(gate)[:-1], -1)


def _dense(formula: str, x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.einsum(formula, x, w.astype(x.dtype), preferred_element_type=jnp.float32)


def _param(value: Any) -> nnx.Param | None:
    return None if value is None else nnx.Param(jnp.asarray(value))


def _value(variable: Any) -> Any:
    return None if variable is None else variable[...]
