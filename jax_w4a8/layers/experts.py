"""The computation of a mixture of experts, apart from any layer class: routing, products, sum."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_w4a8.activations import check_block
from jax_w4a8.checks import FLOATS
from jax_w4a8.layers.gating import clamped_swiglu, silu_mul
from jax_w4a8.layers.routing import Score, check_score, check_top_k, permute, top_k, unpermute
from jax_w4a8.ops import grouped_dot, masked_grouped_dot
from jax_w4a8.weights import QuantizedWeight

Activation = Literal["silu", "clamped_swiglu"]
Form = Literal["auto", "contiguous", "masked"]

_ACTIVATIONS = {"silu": silu_mul, "clamped_swiglu": clamped_swiglu}

MASKED_TOKENS = 16
"""The most tokens for which ``form="auto"`` takes the masked form."""


@dataclasses.dataclass(frozen=True)
class MoEConfig:
    """What a mixture of experts computes.

    Attributes:
      top_k: experts of a token.
      score, renormalize, route_scale: see ``jax_w4a8.layers.routing.top_k``.
      activation: ``"silu"`` (``silu(gate) * up``) or gpt-oss's ``"clamped_swiglu"``.
      interleaved: whether gate and up alternate along the output of gate/up, as gpt-oss has them,
        or lie side by side, gates first.
      form: how the products of the experts get their rows. ``"contiguous"``: ``T * top_k`` rows,
        sorted by expert, for ``grouped_dot``. ``"masked"``: ``T`` rows for every expert, for
        ``masked_grouped_dot``. ``"auto"``: masked for at most ``MASKED_TOKENS`` tokens, where every
        expert has one tile of rows and padding costs 2 % (30 % for 128 tokens, 32 experts, on a
        CPU); contiguous otherwise. No form drops a token, and both give the same numbers.
      block: activations along K that share a scale: 32, 128 or ``"row"``.
      dtype: dtype of the computation and the result, or None for that of the input. Routing,
        biases, activation and the weighted sum are in float32.

    Raises:
      ValueError, TypeError: a value is not one of those listed.
    """

    top_k: int
    score: Score = "softmax"
    renormalize: bool = True
    route_scale: float = 1.0
    activation: Activation = "silu"
    interleaved: bool = False
    form: Form = "auto"
    block: int | str = 128
    dtype: Any = None

    def __post_init__(self) -> None:
        check_score(self.score)
        check_block(self.block)
        if self.activation not in _ACTIVATIONS:
            known = " or ".join(map(repr, _ACTIVATIONS))
            raise ValueError(f"activation: expected {known}, got {self.activation!r}")
        if self.form not in ("auto", "contiguous", "masked"):
            raise ValueError(f"form: expected 'auto', 'contiguous' or 'masked', got {self.form!r}")
        if self.dtype is not None and np.dtype(self.dtype).name not in FLOATS:
            raise TypeError(f"dtype: expected float32, bfloat16 or float16, got {self.dtype}")

    def masked(self, tokens: int) -> bool:
        """Whether ``tokens`` tokens are computed in the masked form."""
        return self.form == "masked" or (self.form == "auto" and tokens <= MASKED_TOKENS)

    def dtype_of(self, x: jax.Array) -> Any:
        """dtype of the computation for tokens ``x``."""
        return x.dtype if self.dtype is None else self.dtype

    def activate(self, h: jax.Array) -> jax.Array:
        """``[..., 2 * I]`` to float32 ``[..., I]``."""
        function: Callable[..., jax.Array] = _ACTIVATIONS[self.activation]
        return function(h, interleaved=self.interleaved, out_dtype=jnp.float32)


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["gate_up", "down", "gate_up_bias", "down_bias"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class Experts:
    """The weights of all experts; a pytree.

    Attributes:
      gate_up: ``[E, D, 2 * I]``.
      down: ``[E, I, N]``.
      gate_up_bias, down_bias: floats ``[E, 2 * I]`` and ``[E, N]``, or None.
    """

    gate_up: QuantizedWeight
    down: QuantizedWeight
    gate_up_bias: jax.Array | None = None
    down_bias: jax.Array | None = None


@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["kernel", "bias", "selection_bias"],
    meta_fields=[],
)
@dataclasses.dataclass(frozen=True)
class Router:
    """What chooses the experts; a pytree.

    Attributes:
      kernel: floats ``[D, E]``.
      bias: ``[E]`` added to the logits, or None.
      selection_bias: ``[E]`` added to the scores for the choice only, or None.
    """

    kernel: jax.Array
    bias: jax.Array | None = None
    selection_bias: jax.Array | None = None


def check_experts(
    router: Any, gate_up: Any, down: Any, gate_up_bias: Any, down_bias: Any, config: MoEConfig
) -> None:
    """Refuses weights, packed or float, whose shapes do not belong together."""
    shapes = {"router": router.shape, "gate_up": gate_up.shape, "down": down.shape}
    for name, rank in (("router", 2), ("gate_up", 3), ("down", 3)):
        if len(shapes[name]) != rank:
            form = "[D, E]" if rank == 2 else "[E, K, N]"
            raise ValueError(f"{name}: expected shape {form}, got {tuple(shapes[name])}")
    experts, features, width = shapes["gate_up"]
    if width % 2:
        raise ValueError(f"gate_up: expected an even last dimension, got shape {gate_up.shape}")
    if tuple(router.shape) != (features, experts):
        raise ValueError(
            f"router: expected shape ({features}, {experts}) to match gate_up "
            f"{tuple(gate_up.shape)}, got {tuple(router.shape)}"
        )
    if tuple(down.shape[:2]) != (experts, width // 2):
        raise ValueError(
            f"down: expected shape ({experts}, {width // 2}, N) to match gate_up "
            f"{tuple(gate_up.shape)}, got {tuple(down.shape)}"
        )
    for name, bias, n in (
        ("gate_up_bias", gate_up_bias, width),
        ("down_bias", down_bias, down.shape[2]),
    ):
        if bias is not None and tuple(bias.shape) != (experts, n):
            raise ValueError(f"{name}: expected shape ({experts}, {n}), got {tuple(bias.shape)}")
    check_top_k(config.top_k, experts)


def route(x: jax.Array, router: Router, config: MoEConfig) -> tuple[jax.Array, jax.Array]:
    """float32 weights and int32 ids ``[..., top_k]`` of tokens ``x`` ``[..., D]``."""
    features = router.kernel.shape[0]
    if x.ndim < 1 or x.shape[-1] != features:
        raise ValueError(f"x: expected shape [..., {features}], got {x.shape}")
    logits = lax.dot_general(
        x.astype(jnp.float32),
        jnp.asarray(router.kernel, jnp.float32),
        (((x.ndim - 1,), (0,)), ((), ())),
        precision=lax.Precision.HIGHEST,
    )
    if router.bias is not None:
        logits = logits + jnp.asarray(router.bias, jnp.float32)
    return top_k(
        logits,
        config.top_k,
        score=config.score,
        bias=router.selection_bias,
        renormalize=config.renormalize,
        scale=config.route_scale,
    )


def mixture(
    x: Any,
    experts: Callable[[jax.Array], jax.Array],
    shared: Callable[[jax.Array], jax.Array] | None,
    config: MoEConfig,
) -> jax.Array:
    """The layer around its experts: leading dimensions, the shared expert, dtype of the result.

    Args:
      x: ``[..., D]``.
      experts: routes and computes tokens, ``[T, D]`` to float32 ``[T, N]``.
      shared: what every token passes, or None.
      config: what to compute.

    Returns:
      ``[..., N]``.
    """
    x = jnp.asarray(x)
    if x.ndim < 1:
        raise ValueError("x: expected tokens [..., D], got a scalar")
    y = experts(x.reshape(math.prod(x.shape[:-1]), x.shape[-1]))
    y = y.reshape(*x.shape[:-1], y.shape[-1])
    if shared is not None:
        y = y + shared(x).astype(jnp.float32)
    return y.astype(config.dtype_of(x))


def run_experts(
    x: jax.Array,
    weights: jax.Array,
    ids: jax.Array,
    experts: Experts,
    config: MoEConfig,
    *,
    out_dtype: jax.typing.DTypeLike | None = None,
) -> jax.Array:
    """The weighted sum over each token's experts.

    Args:
      x: ``[T, D]`` float32, bfloat16 or float16.
      weights, ids: ``[T, k]``; an id of -1 contributes nothing.
      experts: the weights.
      config: what to compute.
      out_dtype: dtype of the down product, before bias and weighted sum: that of ``x`` by default.

    Returns:
      float32 ``[T, N]``.
    """
    count = experts.gate_up.shape[0]
    masked = config.masked(x.shape[0])
    rows, permutation = permute(x, ids, count, capacity=x.shape[0] if masked else None)

    def project(
        a: jax.Array, w: QuantizedWeight, bias: jax.Array | None, dtype: Any = x.dtype
    ) -> jax.Array:
        dot = masked_grouped_dot if masked else grouped_dot
        y = dot(a, w, permutation.counts, block=config.block, out_dtype=dtype)
        if bias is None:
            return y
        return y.astype(jnp.float32) + bias[permutation.experts].astype(jnp.float32)

    h = project(rows, experts.gate_up, experts.gate_up_bias)
    y = project(config.activate(h), experts.down, experts.down_bias, out_dtype or x.dtype)
    return unpermute(y, permutation, weights)
