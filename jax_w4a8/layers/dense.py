"""``W4A8Dense``: ``flax.nnx.Linear`` with an FP4 weight."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jax_w4a8.activations import QuantizedActivation, check_block
from jax_w4a8.checks import float_dtype
from jax_w4a8.ops import dot
from jax_w4a8.weights import QuantizedWeight, ScaleRule, quantize


class PackedWeight(nnx.Variable[QuantizedWeight]):
    """Variable that holds a ``QuantizedWeight``.

    Not an ``nnx.Param``: its codes are frozen integers, which ``nnx.grad`` and optimisers leave
    alone because they look for parameters only.
    """


class W4A8Dense(nnx.Module):
    """A linear transformation ``[..., K] -> [..., N]`` with FP4 weight and FP8 activations.

    Takes the place of ``nnx.Linear``: the attributes have the same names, and the computation has
    the dtype that ``nnx.Linear`` would have given it::

        layer = W4A8Dense.from_dense(linear)
        y = layer(x)

    Attributes:
      kernel: ``PackedWeight`` with the weight ``[K, N]``, or ``[L, K, N]`` for ``nnx.scan`` and
        ``nnx.vmap`` to take apart.
      bias: ``nnx.Param`` ``[N]`` (or ``[L, N]``), or None.
      in_features, out_features: K and N.
      block: activations along K that share a scale: 32, 128 or ``"row"``.
      dtype: dtype of the computation, or None for the common dtype of input, kernel and bias.
      param_dtype: dtype that the kernel counts as where ``dtype`` is None.
      preferred_element_type: dtype of the product before the bias is added, or None for the dtype
        of the computation.
    """

    def __init__(
        self,
        kernel: QuantizedWeight,
        bias: Any = None,
        *,
        block: int | str = 128,
        dtype: jax.typing.DTypeLike | None = None,
        param_dtype: jax.typing.DTypeLike = jnp.float32,
        preferred_element_type: jax.typing.DTypeLike | None = None,
    ):
        """Makes the layer from a packed weight.

        Args:
          kernel: ``[K, N]``, from ``jax_w4a8.quantize``, in any layout.
          bias: float array or ``nnx.Param`` ``[N]``, or None for no bias.
          block, dtype, param_dtype, preferred_element_type: see the attributes.

        Raises:
          TypeError: ``kernel`` is not a ``QuantizedWeight``, or a dtype is not float32, bfloat16
            or float16.
          ValueError: ``bias`` does not fit ``kernel``, or ``block`` is not one of those listed.
        """
        if not isinstance(kernel, QuantizedWeight):
            raise TypeError(
                f"kernel: expected a QuantizedWeight, got {type(kernel).__name__}; quantise it "
                "with jax_w4a8.quantize(kernel), or call W4A8Dense.from_dense(linear)"
            )
        check_block(block)
        self.kernel = PackedWeight(kernel)
        self.bias = nnx.data(_bias(bias, (*kernel.lead, kernel.n)))
        self.in_features, self.out_features = kernel.k, kernel.n
        self.use_bias = bias is not None
        self.block = block
        self.dtype = check_dtype(dtype, "dtype")
        self.param_dtype = check_dtype(param_dtype, "param_dtype")
        self.preferred_element_type = check_dtype(preferred_element_type, "preferred_element_type")

    @classmethod
    def from_dense(
        cls, layer: nnx.Linear, *, block: int | str = 128, rule: ScaleRule = "mse"
    ) -> W4A8Dense:
        """Quantises the kernel of an ``nnx.Linear``; bias and dtypes stay as they are.

        Args:
          layer: the float layer, which is left unchanged.
          block: activations along K that share a scale: 32, 128 or ``"row"``.
          rule: the scale rule of ``jax_w4a8.quantize``.

        Raises:
          TypeError: ``layer`` is not an ``nnx.Linear``, or overrides what it computes.
          ValueError: it has a ``dot_general`` or ``promote_dtype`` of its own, or its kernel holds
            a NaN or an infinity.
        """
        if not is_linear(layer):
            raise TypeError(f"layer: expected flax.nnx.Linear, got {type(layer).__name__}")
        for name, usual in (
            ("dot_general", jax.lax.dot_general),
            ("promote_dtype", nnx.nn.dtypes.promote_dtype),
        ):
            if getattr(layer, name) is not usual:
                raise ValueError(
                    f"layer: expected an nnx.Linear without a {name} of its own, got "
                    f"{getattr(layer, name)!r}, which an FP4 product cannot take into account; "
                    "leave this layer in floats"
                )
        kernel = layer.kernel[...]
        return cls(
            quantize(kernel, rule=rule),
            None if layer.bias is None else layer.bias.copy(),
            block=block,
            dtype=layer.dtype,
            param_dtype=kernel.dtype,
            preferred_element_type=layer.preferred_element_type,
        )

    def __call__(self, inputs: jax.Array | QuantizedActivation) -> jax.Array:
        """Applies the layer.

        Args:
          inputs: ``[..., K]``, or a ``QuantizedActivation`` with this layer's ``block``.

        Returns:
          ``[..., N]``.
        """
        return affine(
            inputs,
            self.kernel.get_value(),
            None if self.bias is None else self.bias[...],
            block=self.block,
            dtype=self.dtype,
            param_dtype=self.param_dtype,
            preferred_element_type=self.preferred_element_type,
        )


def is_linear(layer: Any) -> bool:
    """Whether ``layer`` is an ``nnx.Linear`` that computes what ``nnx.Linear`` computes."""
    return isinstance(layer, nnx.Linear) and type(layer).__call__ is nnx.Linear.__call__


def affine(
    x: Any,
    w: QuantizedWeight,
    bias: jax.Array | None,
    *,
    block: int | str,
    dtype: Any,
    param_dtype: Any,
    preferred_element_type: Any = None,
) -> jax.Array:
    """``x @ w + bias`` in the dtypes that Flax's own dense layers would use."""
    if not isinstance(x, QuantizedActivation):
        x = jnp.asarray(x)
    if dtype is None:
        own = (x.dtype if isinstance(x, QuantizedActivation) else x, param_dtype)
        dtype = jnp.result_type(*own, *(() if bias is None else (bias,)))
    if not isinstance(x, QuantizedActivation):
        x = x.astype(dtype)
    y = dot(x, w, block=block, out_dtype=preferred_element_type or dtype)
    return y if bias is None else y + bias.astype(dtype)


def check_dtype(dtype: Any, name: str) -> np.dtype | None:
    """``dtype`` as one of the float dtypes that a product takes, or None where it is None."""
    return None if dtype is None else float_dtype(dtype, name)


def _bias(bias: Any, shape: tuple[int, ...]) -> nnx.Param | None:
    if bias is None:
        return None
    param = bias if isinstance(bias, nnx.Param) else nnx.Param(jnp.asarray(bias))
    if tuple(param.shape) != shape or not jnp.issubdtype(param.dtype, jnp.floating):
        raise ValueError(
            f"bias: expected floats of shape {shape}, got {param.dtype} {tuple(param.shape)}"
        )
    return param
