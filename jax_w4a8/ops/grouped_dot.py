"""``grouped_dot`` and ``masked_grouped_dot``: one product an expert."""

from __future__ import annotations

import jax

from jax_w4a8.activations import QuantizedActivation
from jax_w4a8.ops.arguments import check_activations, check_sizes, check_weight, run
from jax_w4a8.weights import QuantizedWeight


def grouped_dot(
    x: jax.Array | QuantizedActivation,
    w: QuantizedWeight,
    group_sizes: jax.Array,
    *,
    block: int | str | None = None,
    out_dtype: jax.typing.DTypeLike | None = None,
) -> jax.Array:
    """Products of consecutive groups of rows, each with its own expert: ``jax.lax.ragged_dot``.

    The first ``group_sizes[0]`` rows are multiplied by ``w[0]``, the next by ``w[1]``, and so on;
    rows past the sum of the sizes are zero in the result. Sizes are read on the device only.
    Negative sizes count as zero, and groups are cut where the rows end.

    Args:
      x: ``[M, K]`` float32, bfloat16, float16, or a ``QuantizedActivation``, rows sorted by expert.
      w: ``[E, K, N]``, from ``jax_w4a8.quantize``.
      group_sizes: int32 ``[E]``.
      block: 32, 128 or ``"row"``; 128 unless ``x`` is quantised already.
      out_dtype: float32, bfloat16 or float16; the dtype of ``x`` unless said otherwise.

    Returns:
      ``[M, N]`` in ``out_dtype``.

    Raises:
      TypeError, ValueError, BackendError: as ``jax_w4a8.dot``.
    """
    activations = check_activations(x, block)
    w = check_weight(w, 3, "grouped_dot")
    if len(activations.shape) != 2:
        raise ValueError(f"x: grouped_dot expects shape [M, K], got {activations.shape}")
    sizes = check_sizes(group_sizes, w.lead[0], "group_sizes")
    return run("grouped", activations, sizes, w, out_dtype)


def masked_grouped_dot(
    x: jax.Array | QuantizedActivation,
    w: QuantizedWeight,
    counts: jax.Array,
    *,
    block: int | str | None = None,
    out_dtype: jax.typing.DTypeLike | None = None,
) -> jax.Array:
    """``x[e, :counts[e]] @ w[e]`` for every expert e; the rows past a count are zero.

    What those rows of ``x`` hold, NaN included, has no effect. Counts are read on the device only,
    negative ones are zero and larger ones than Mmax are Mmax.

    Args:
      x: ``[E, Mmax, K]`` float32, bfloat16, float16, or a ``QuantizedActivation``.
      w: ``[E, K, N]``, from ``jax_w4a8.quantize``.
      counts: int32 ``[E]``, rows in use for each expert.
      block: 32, 128 or ``"row"``; 128 unless ``x`` is quantised already.
      out_dtype: float32, bfloat16 or float16; the dtype of ``x`` unless said otherwise.

    Returns:
      ``[E, Mmax, N]`` in ``out_dtype``.

    Raises:
      TypeError, ValueError, BackendError: as ``jax_w4a8.dot``.
    """
    activations = check_activations(x, block)
    w = check_weight(w, 3, "masked_grouped_dot")
    if len(activations.shape) != 3 or activations.shape[0] != w.lead[0]:
        raise ValueError(
            f"x: masked_grouped_dot expects shape [E, Mmax, K] with E = {w.lead[0]}, got "
            f"{activations.shape}"
        )
    sizes = check_sizes(counts, w.lead[0], "counts")
    return run("masked", activations, sizes, w, out_dtype)
