"""``W4A8MoE`` for Flax Linen; import it from ``jax_w4a8.linen``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from jax_w4a8.layers.experts import (
    Experts,
    MoEConfig,
    Router,
    check_experts,
    mixture,
    route,
    run_experts,
)
from jax_w4a8.linen import Path, packed_kernel, quantize_params
from jax_w4a8.weights import ScaleRule

EXPERTS = ("gate_up", "down")


class _Projection(nn.Module):
    """Kernel and bias of one projection of all experts: packed, or float as the router's."""

    shape: tuple[int, ...]
    use_bias: bool
    packed: bool
    kernel_init: Callable[..., Any]
    param_dtype: Any
    rule: ScaleRule = "mse"

    @nn.compact
    def __call__(self) -> tuple[Any, jax.Array | None]:
        if self.packed:
            kernel: Any = packed_kernel(self, self.shape)
        else:
            kernel = self.param("kernel", self.kernel_init, self.shape, self.param_dtype)
        if not self.use_bias:
            return kernel, None
        bias_shape = (*self.shape[:-2], self.shape[-1])
        zeros = nn.initializers.zeros_init()
        return kernel, self.param("bias", zeros, bias_shape, self.param_dtype)


class W4A8MoE(nn.Module):
    """A mixture of experts ``[..., D] -> [..., features]`` with FP4 experts and FP8 activations.

    Variables: ``router/kernel`` ``[D, E]`` (float) and ``router/bias`` in ``"params"``;
    ``gate_up/kernel`` ``[E, D, 2 * hidden]`` and ``down/kernel`` ``[E, hidden, features]``
    (``QuantizedWeight``) in ``"quantized"``, their biases in ``"params"``; ``selection_bias``
    ``[E]`` in ``"moe"``, zero at first. ``init`` quantises what ``kernel_init`` gives;
    ``quantize_experts`` converts trained parameters.

    Attributes:
      num_experts: E.
      hidden: width inside an expert.
      features: width of the result.
      config: what to compute, see ``MoEConfig``.
      use_bias: whether experts have biases.
      use_router_bias: whether the router has a bias.
      use_selection_bias: whether a bias takes part in the choice of experts.
      shared: a module ``[..., D] -> [..., features]`` that every token passes, or None.
      kernel_init: initialiser of the router and of each expert.
      param_dtype: dtype of router and biases.
      rule: the scale rule of ``jax_w4a8.quantize``, for ``init``.
    """

    num_experts: int
    hidden: int
    features: int
    config: MoEConfig
    use_bias: bool = False
    use_router_bias: bool = False
    use_selection_bias: bool = False
    shared: nn.Module | None = None
    kernel_init: Callable[..., Any] = nn.initializers.lecun_normal(batch_axis=())
    param_dtype: Any = jnp.float32
    rule: ScaleRule = "mse"

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        """Applies the layer to tokens ``[..., D]``.

        Raises:
          ValueError: the packed kernels are not in the variables, or do not fit.
        """
        x = jnp.asarray(x)
        width, count = x.shape[-1], self.num_experts
        router, router_bias = self._projection(
            "router", (width, count), self.use_router_bias, packed=False
        )
        gate_up, gate_up_bias = self._projection(
            "gate_up", (count, width, 2 * self.hidden), self.use_bias, packed=True
        )
        down, down_bias = self._projection(
            "down", (count, self.hidden, self.features), self.use_bias, packed=True
        )
        check_experts(router, gate_up, down, gate_up_bias, down_bias, self.config)
        selection_bias = None
        if self.use_selection_bias:
            selection_bias = self.variable("moe", "selection_bias", jnp.zeros, (count,)).value
        routing = Router(router, router_bias, selection_bias)
        packed = Experts(gate_up, down, gate_up_bias, down_bias)

        def experts(x: jax.Array) -> jax.Array:
            tokens = x.astype(self.config.dtype_of(x))
            return run_experts(tokens, *route(x, routing, self.config), packed, self.config)

        return mixture(x, experts, self.shared, self.config)

    def _projection(self, name: str, shape: tuple[int, ...], bias: bool, *, packed: bool) -> Any:
        init = self.kernel_init
        if len(shape) == 3:

            def init(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
                keys = jax.random.split(key, shape[0])
                return jax.vmap(lambda k: self.kernel_init(k, shape[1:], dtype))(keys)

        return _Projection(shape, bias, packed, init, self.param_dtype, self.rule, name=name)()


def quantize_experts(
    params: Mapping[str, Any],
    where: Callable[[Path], bool] = lambda path: True,
    *,
    rule: ScaleRule = "mse",
) -> dict[str, Any]:
    """Turns float parameters into variables with FP4 experts.

    What it selects are the kernels named ``gate_up`` and ``down``; give the kernels of other
    models these names first, or choose with ``jax_w4a8.linen.quantize_params``.

    Args:
      params: the ``"params"`` collection of the float model.
      where: says for the path of each ``gate_up`` and ``down`` whether to quantise it.
      rule: the scale rule of ``jax_w4a8.quantize``.

    Returns:
      ``{"params": ..., "quantized": ...}``.

    Raises:
      ValueError: no kernel was selected, or a selected one cannot be quantised.
    """
    return quantize_params(params, lambda path: path[-1] in EXPERTS and where(path), rule=rule)
