"""Routing of tokens to experts in plain JAX: choose, bring together by expert, take apart again.

ids, weights of ``top_k`` -> ``permute`` -> products of groups of rows -> ``unpermute``.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax import lax

Score = Literal["softmax", "sigmoid", "sqrt_softplus"]

NOTHING = -1
"""The expert id of an assignment that contributes nothing."""
_INVALID = -2
"""The row of an assignment that cannot be served: its token becomes NaN."""


def _log_sqrt_softplus(logits: jax.Array) -> jax.Array:
    # softplus(x) is exp(x) far below zero, where its logarithm would be that of an underflow.
    near = jnp.log(jax.nn.softplus(jnp.maximum(logits, -20.0)))
    return jnp.where(logits < -20.0, logits, near) / 2


_LOG_SCORES = {
    "softmax": jax.nn.log_softmax,
    "sigmoid": jax.nn.log_sigmoid,
    "sqrt_softplus": _log_sqrt_softplus,
}


def top_k(
    logits: jax.Array,
    k: int,
    *,
    score: Score = "softmax",
    bias: jax.Array | None = None,
    renormalize: bool = True,
    scale: float = 1.0,
) -> tuple[jax.Array, jax.Array]:
    """The ``k`` experts of each token and their weights.

    Experts are chosen by ``score(logits) + bias``, largest first; of equal ones the lowest ids win.
    The bias takes part in the choice only (DeepSeek-V3's correction of the load). Ids are always
    distinct, whatever the logits hold; a NaN among a token's logits makes a weight NaN.

    Args:
      logits: ``[..., E]``; the computation is in float32.
      k: experts of a token, 1 to E.
      score: ``"softmax"`` over all experts, ``"sigmoid"``, or ``"sqrt_softplus"``.
      bias: ``[E]`` added to the scores for the choice, or None.
      renormalize: whether the chosen weights are divided by their sum. With ``"softmax"`` that is
        the softmax over the chosen logits.
      scale: factor of the weights, applied last.

    Returns:
      float32 weights ``[..., k]`` and int32 ids ``[..., k]``.

    Raises:
      ValueError: ``k``, ``score`` or a shape is not one of those listed.
      TypeError: ``logits`` are not floats.
    """
    logits = jnp.asarray(logits)
    if logits.ndim < 1 or not jnp.issubdtype(logits.dtype, jnp.floating):
        raise TypeError(f"logits: expected floats [..., E], got {logits.dtype} {logits.shape}")
    experts = logits.shape[-1]
    check_top_k(k, experts)
    check_score(score)
    if bias is not None and jnp.shape(bias) != (experts,):
        raise ValueError(f"bias: expected shape ({experts},), got {jnp.shape(bias)}")
    logits = logits.astype(jnp.float32)
    log_scores = _LOG_SCORES[score](logits)
    # Without a bias the logits themselves are compared, because scores round.
    key = logits if bias is None else jnp.exp(log_scores) + jnp.asarray(bias, jnp.float32)
    _, ids = lax.top_k(lax.stop_gradient(_ordered(key)), k)
    chosen = jnp.take_along_axis(log_scores, ids, axis=-1)
    # The softmax of logarithms is the quotient by the sum, without its underflow.
    weights = jax.nn.softmax(chosen) if renormalize else jnp.exp(chosen)
    return weights * scale, ids


def _ordered(key: jax.Array) -> jax.Array:
    """Numbers whose total order is the order by size: -0 equals 0, and every NaN comes first."""
    return jnp.where(jnp.isnan(key), jnp.nan, jnp.where(key == 0, 0.0, key))


def check_top_k(k: Any, experts: int) -> None:
    """Refuses a number of experts of a token that ``experts`` of them cannot give."""
    if not isinstance(k, int) or not 1 <= k <= experts:
        raise ValueError(f"top_k: expected an int from 1 to E = {experts}, got {k!r}")


def check_score(score: Any) -> None:
    """Refuses what is not the name of a score."""
    if score not in _LOG_SCORES:
        raise ValueError(f"score: expected one of {', '.join(_LOG_SCORES)}; got {score!r}")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Permutation:
    """Where ``permute`` put the assignments of tokens to experts.

    Attributes:
      counts: int32 ``[E]``, rows of each expert: the sizes that a grouped product takes.
      experts: the expert of each row, to pick what is added to it: ``[R]``, or ``[E, 1]``.
      tokens: the token of each row: ``[R]``, or ``[E, capacity]``; any past the counts.
      rows: int32 ``[T, k]``, the row of each assignment, counted through all experts; negative
        where there is none.
    """

    counts: jax.Array
    experts: jax.Array
    tokens: jax.Array
    rows: jax.Array


def permute(
    x: Any, ids: jax.Array, experts: int, *, capacity: int | None = None, first: Any = None
) -> tuple[Any, Permutation]:
    """Brings the rows of each expert together, in the order of the tokens.

    An id of -1 contributes nothing. Any other id that is no expert's, and an assignment for which
    ``capacity`` leaves no room, makes its token NaN in ``unpermute``: tokens are never dropped
    silently. ``capacity = T`` always has room for distinct ids, as ``top_k`` gives them.

    Memory: ``T * k`` rows in the contiguous form, ``E * capacity`` rows in the masked one.

    Args:
      x: ``[T, ...]``: an array, or a pytree of them such as a ``QuantizedActivation``.
      ids: integers ``[T, k]``, -1 or 0 to E - 1, in any order.
      experts: E.
      capacity: rows of each expert in the masked form, or None for the contiguous one.
      first: None, or the number of rows of each expert to pass over, an int32 scalar: the window
        ``first`` to ``first + capacity`` of each expert's rows, of which others count as -1.

    Returns:
      The rows, ``[T * k, ...]`` sorted by expert for ``grouped_dot``, or ``[E, capacity, ...]`` for
      ``masked_grouped_dot``, and their ``Permutation``, with the counts that these take.

    Raises:
      TypeError: ``ids`` are not integers.
      ValueError: the shapes of ``ids`` and ``x`` do not match.
    """
    ids = jnp.asarray(ids)
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        raise TypeError(f"ids: expected integers [T, k], got dtype {ids.dtype}")
    lengths = {a.shape[0] for a in jax.tree.leaves(x)}
    if ids.ndim != 2 or lengths != {ids.shape[0]}:
        raise ValueError(f"ids: expected shape [T, k] with x's T of {lengths}, got {ids.shape}")
    permutation = _permutation(ids.astype(jnp.int32), experts, capacity, first)
    return jax.tree.map(lambda a: jnp.asarray(a)[permutation.tokens], x), permutation


def _permutation(ids: jax.Array, experts: int, capacity: int | None, first: Any) -> Permutation:
    k = ids.shape[1]
    valid = (ids >= 0) & (ids < experts)
    none = jnp.where(ids == NOTHING, NOTHING, _INVALID)
    keys = jnp.where(valid, ids, experts).reshape(-1)
    order = jnp.argsort(keys, stable=True).astype(jnp.int32)
    ends = jnp.searchsorted(keys[order], jnp.arange(experts, dtype=jnp.int32), side="right")
    ends = ends.astype(jnp.int32)
    starts = jnp.concatenate([jnp.zeros_like(ends[:1]), ends[:-1]])
    counts = ends - starts
    places = jnp.zeros_like(order).at[order].set(jnp.arange(order.size, dtype=jnp.int32))
    places = places.reshape(ids.shape)
    if capacity is None:
        rows = jnp.where(valid, places, none)
        return Permutation(counts, jnp.minimum(keys[order], experts - 1), order // k, rows)
    begin = jnp.int32(0) if first is None else first
    slots = places - starts[jnp.where(valid, ids, 0)] - begin
    inside = (slots >= 0) & (slots < capacity)
    outside = _INVALID if first is None else NOTHING
    rows = jnp.where(valid, jnp.where(inside, ids * capacity + slots, outside), none)
    sources = starts[:, None] + begin + jnp.arange(capacity, dtype=jnp.int32)
    tokens = order[jnp.minimum(sources, order.size - 1)] // k if order.size else sources * 0
    counts = jnp.clip(counts - begin, 0, capacity)
    return Permutation(counts, jnp.arange(experts, dtype=jnp.int32)[:, None], tokens, rows)


def unpermute(y: jax.Array, permutation: Permutation, weights: jax.Array) -> jax.Array:
    """The weighted sum of each token's rows, in float32: the way back from ``permute``.

    Args:
      y: ``[R, N]`` or ``[E, capacity, N]``: a row for each row that ``permute`` made.
      permutation: what ``permute`` returned.
      weights: ``[T, k]``.

    Returns:
      float32 ``[T, N]``; a token without an expert is zero, whatever ``y`` and ``weights`` hold.

    Raises:
      ValueError: ``weights`` are not ``[T, k]``.
    """
    rows = permutation.rows
    if jnp.shape(weights) != rows.shape:
        raise ValueError(f"weights: expected shape {rows.shape}, got {jnp.shape(weights)}")
    y = jnp.asarray(y).reshape(-1, y.shape[-1])
    if not y.size:
        return jnp.zeros((rows.shape[0], y.shape[-1]), jnp.float32)
    served = rows >= 0
    # Both factors are replaced, not the product: its gradient would be NaN times zero.
    factors = jnp.where(served, jnp.asarray(weights, jnp.float32), 0.0)
    factors = jnp.where(rows == _INVALID, jnp.nan, factors)
    values = jnp.where(served[..., None], y[jnp.maximum(rows, 0)].astype(jnp.float32), 0.0)
    return jnp.sum(factors[..., None] * values, axis=1)
