"""Flax Linen layers with FP4 weights, and the conversion of float parameters to theirs.

Packed weights live in a variable collection of their own, ``"quantized"``, out of the way of
gradients and optimisers; biases stay in ``"params"``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import serialization, traverse_util

from jax_w4a8.layers.dense import affine, check_dtype
from jax_w4a8.weights import QuantizedWeight, ScaleRule, quantize

COLLECTION = "quantized"

Path = tuple[str, ...]


class W4A8Dense(nn.Module):
    """A linear transformation ``[..., K] -> [..., N]`` with FP4 weight and FP8 activations.

    Takes the place of ``nn.Dense`` with the same fields, dtype rules and variable names: ``kernel``
    (a ``QuantizedWeight``, in the collection ``"quantized"``) and ``bias`` (in ``"params"``).
    ``init`` quantises what ``kernel_init`` gives; ``quantize_params`` converts trained parameters.

    Attributes:
      features: N.
      use_bias: whether to add a bias.
      dtype: dtype of the computation, or None for the common dtype of input, kernel and bias.
      param_dtype: dtype of the bias, and the one that the kernel counts as where ``dtype`` is None.
      kernel_init, bias_init: initialisers.
      block: activations along K that share a scale: 32, 128 or ``"row"``.
      rule: the scale rule of ``jax_w4a8.quantize``, for ``init``.
    """

    features: int
    use_bias: bool = True
    dtype: Any = None
    param_dtype: Any = jnp.float32
    kernel_init: Callable[..., Any] = nn.linear.default_kernel_init
    bias_init: Callable[..., Any] = nn.initializers.zeros_init()
    block: int | str = 128
    rule: ScaleRule = "mse"

    @nn.compact
    def __call__(self, inputs: Any) -> jax.Array:
        """Applies the layer.

        Args:
          inputs: ``[..., K]``, or a ``QuantizedActivation`` with this layer's ``block``.

        Returns:
          ``[..., N]``.

        Raises:
          ValueError: there is no packed kernel in the variables, or it does not fit.
        """
        kernel = packed_kernel(self, (inputs.shape[-1], self.features))
        bias = None
        if self.use_bias:
            bias = self.param("bias", self.bias_init, (self.features,), self.param_dtype)
        return affine(
            inputs,
            kernel,
            bias,
            block=self.block,
            dtype=check_dtype(self.dtype, "dtype"),
            param_dtype=check_dtype(self.param_dtype, "param_dtype"),
        )


def packed_kernel(module: Any, shape: tuple[int, ...]) -> QuantizedWeight:
    """The packed ``kernel`` of ``module``, made from its initialiser while it is initialised.

    Args:
      module: a Linen module with ``kernel_init``, ``param_dtype`` and ``rule``.
      shape: ``[K, N]``, or ``[E, K, N]`` for experts.

    Raises:
      ValueError: there is no packed kernel in the variables, or it does not fit.
    """
    where = "/".join(module.path) or "the model"
    mutable = module.is_mutable_collection(COLLECTION)
    if not (module.has_variable(COLLECTION, "kernel") or mutable):
        raise ValueError(
            f"variables: expected the packed kernel of {where} in the collection "
            f"{COLLECTION!r}, got none; jax_w4a8.linen.quantize_params(params) makes it "
            "from float parameters"
        )

    def init() -> QuantizedWeight:
        kernel = module.kernel_init(module.make_rng("params"), shape, module.param_dtype)
        return quantize(nn.meta.unbox(kernel), rule=module.rule)

    kernel = module.variable(COLLECTION, "kernel", init).value
    if not isinstance(kernel, QuantizedWeight) or kernel.shape != shape:
        raise ValueError(
            f"variables: expected a QuantizedWeight of shape {shape} as the "
            f"kernel of {where}, got {kernel!r}"
        )
    return kernel


def quantize_params(
    params: Mapping[str, Any],
    where: Callable[[Path], bool] | None = None,
    *,
    rule: ScaleRule = "mse",
) -> dict[str, Any]:
    """Turns the parameters of a float model into the variables of its FP4 model.

    The FP4 model has ``W4A8Dense`` where the float one has ``nn.Dense``, under the same names
    (``W4A8Dense(features, name="Dense_0")`` where the float model left the name to Flax)::

        variables = quantize_params(params, where=lambda path: path[-1] != "lm_head")
        y = model.apply(variables, x)

    Args:
      params: the ``"params"`` collection of the float model.
      where: says for the path of each module with a ``kernel``, such as ``("encoder", "mlp_up")``,
        whether to quantise it. By default every one whose kernel is ``[K, N]``. A kernel that
        ``where`` selects may be ``[L, K, N]`` too, as ``nn.scan`` and ``nn.vmap`` make them.
      rule: the scale rule of ``jax_w4a8.quantize``.

    Returns:
      ``{"params": ..., "quantized": ...}``; what is not quantised stays in ``"params"``.

    Raises:
      ValueError: no kernel was selected, or a selected one cannot be quantised.
    """
    floats = dict(traverse_util.flatten_dict(nn.meta.unbox(params)))
    kernels = [path for path in floats if path[-1] == "kernel"]
    packed = {}
    for path in kernels:
        if where(path[:-1]) if where else floats[path].ndim == 2:
            try:
                packed[path] = quantize(floats.pop(path), rule=rule)
            except (TypeError, ValueError) as error:
                raise type(error)(f"params: {'/'.join(path)!r}: {error}") from error
    if not packed:
        names = ", ".join("/".join(path[:-1]) for path in kernels[:5]) or "no kernel at all"
        raise ValueError(f"where: expected to select a kernel, selected none; params hold {names}")
    unflatten = traverse_util.unflatten_dict
    return {"params": unflatten(floats), COLLECTION: unflatten(packed)}


def __getattr__(name: str) -> Any:
    if name in ("W4A8MoE", "quantize_experts"):
        from jax_w4a8 import linen_moe

        return getattr(linen_moe, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _to_state(w: QuantizedWeight) -> dict[str, Any]:
    return {str(i): array for i, array in enumerate(w.arrays)}


def _from_state(target: QuantizedWeight, state: dict[str, Any]) -> QuantizedWeight:
    arrays = tuple(state[str(i)] for i in range(len(state)))
    expected, got = ([a.shape for a in arrays_] for arrays_ in (target.arrays, arrays))
    if expected != got:
        raise ValueError(f"state: expected arrays of shapes {expected} for {target!r}, got {got}")
    return QuantizedWeight.from_arrays(arrays, k=target.k, n=target.n, layout=target.layout)


serialization.register_serialization_state(QuantizedWeight, _to_state, _from_state)
