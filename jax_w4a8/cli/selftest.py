"""``python -m jax_w4a8 selftest``: every backend that serves here against float64.

The sm100 backend's results are compared with the predicted bits of its tensor core, too.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

import jax_w4a8
from jax_w4a8 import QuantizedActivation, QuantizedWeight, backends
from jax_w4a8.backends.selection import platform_here, why_not
from jax_w4a8.cli import tensor_core
from jax_w4a8.cli.info import KINDS, example
from jax_w4a8.product import Kind

BLOCKS = (32, 128, "row")
ROWS, N, K, GROUPS = 21, 200, 416, 5


@dataclasses.dataclass(frozen=True)
class Case:
    """One product of random operands and what it must give."""

    kind: Kind
    x: jax.Array
    sizes: jax.Array
    w: QuantizedWeight

    @classmethod
    def draw(cls, kind: Kind, seed: int) -> Case:
        """Operands with garbage wherever it must have no effect."""
        rng = np.random.default_rng(seed)
        w = rng.normal(size=(GROUPS, K, N)) * 2.0 ** rng.integers(-6, 6, (GROUPS, 1, N))
        x = rng.normal(size=(GROUPS, ROWS, K))
        counts = rng.permutation([0, 1, ROWS, ROWS - 4, 7])
        if kind == "dense":
            x, w = x[0], w[0]
        elif kind == "grouped":
            x, counts = x.reshape(-1, K), np.array([3, 0, 1, 2 * ROWS, 11])
            x[counts.sum() :] = np.nan
        else:
            x[np.arange(ROWS) >= counts[:, None]] = np.nan
        weight = jax_w4a8.quantize(w.astype(np.float32))
        return cls(kind, jnp.asarray(x, jnp.bfloat16), jnp.asarray(counts, jnp.int32), weight)

    def compute(self, block: int | str) -> tuple[jax.Array, QuantizedActivation]:
        """The product in float32 and the quantised activations, by the selected backend."""
        x, w, sizes = self.x, self.w, self.sizes
        if self.kind == "dense":
            y = jax_w4a8.dot(x, w, block=block, out_dtype=jnp.float32)
        elif self.kind == "grouped":
            y = jax_w4a8.grouped_dot(x, w, sizes, block=block, out_dtype=jnp.float32)
        else:
            y = jax_w4a8.masked_grouped_dot(x, w, sizes, block=block, out_dtype=jnp.float32)
        return y, jax_w4a8.quantize_activation(x, block=block)

    def group_of_row(self) -> np.ndarray:
        """The group of each row of x, laid end to end; -1 for rows of none."""
        sizes = np.asarray(self.sizes)
        if self.kind == "dense":
            return np.zeros(ROWS, int)
        if self.kind == "masked":
            used = np.arange(ROWS) < sizes[:, None]
            return np.where(used, np.arange(GROUPS)[:, None], -1).ravel()
        groups = np.full(GROUPS * ROWS, -1)
        groups[: sizes.sum()] = np.repeat(np.arange(GROUPS), sizes)
        return groups

    def expected(self, a: QuantizedActivation) -> tuple[np.ndarray, np.ndarray]:
        """The product in float64 ``[rows, N]``, and the sum of its terms' magnitudes."""
        x = np.asarray(a.dequantize(jnp.float32), np.float64).reshape(-1, K)
        w = np.asarray(self.w.dequantize(), np.float64).reshape(-1, K, N)
        group = self.group_of_row()
        used = group >= 0
        y, terms = np.zeros((len(x), N)), np.zeros((len(x), N))
        y[used] = np.einsum("mk,mkn->mn", x[used], w[group[used]])
        terms[used] = np.einsum("mk,mkn->mn", abs(x[used]), abs(w[group[used]]))
        return y, terms

    def predicted(self, a: QuantizedActivation, block: int | str) -> np.ndarray:
        """The bits of the tensor core's product ``[rows, N]``: ``tensor_core`` says how."""
        x = np.asarray(a.codes).view(np.uint8).reshape(-1, K)
        scales = np.asarray(a.scales).reshape(len(x), -1)
        length = block if isinstance(block, int) else K
        scales = scales[:, np.arange(0, K, tensor_core.BLOCK) // length]
        packed = np.asarray(self.w.codes).reshape(-1, N, K // 2)
        w = np.stack([packed & 15, packed >> 4], axis=-1).reshape(-1, N, K)
        w_scales = np.asarray(self.w.scales).reshape(len(w), N, -1)
        result = np.zeros((len(x), N), np.float32)
        groups = self.group_of_row()
        for group in range(len(w)):
            used = groups == group
            result[used] = tensor_core.accumulators(
                x[used], scales[used], w[group], w_scales[group]
            )
        return tensor_core.round_to(result, np.dtype(np.float32)).view(np.uint32)


def main(argv: Sequence[str]) -> int:
    """Prints a table; returns 1 if a backend that serves here fails, else 0."""
    parser = argparse.ArgumentParser(prog="python -m jax_w4a8 selftest", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the random operands")
    seed = parser.parse_args(argv).seed
    platform = platform_here()
    device = jax.local_devices()[0].device_kind
    print(f"jax_w4a8 {jax_w4a8.__version__}, jax {jax.__version__}, {platform}: {device}")
    print(f"{'backend':8} {'product':8} {'block':>5} {'error / bound':>14}  codes   bits")
    failed = 0
    for name in backends.NAMES:
        for kind in KINDS:
            reason = why_not(backends.get(name), example(kind), platform, named=True)
            if reason is not None:
                print(f"{name:8} {kind:8}     -              -  does not serve: {reason}")
                continue
            case = Case.draw(kind, seed)
            failed += sum(not _check(name, case, block) for block in BLOCKS)
    print(f"selftest: {f'{failed} products FAILED' if failed else 'ok'}")
    return 1 if failed else 0


def _check(name: str, case: Case, block: int | str) -> bool:
    with jax_w4a8.use_backend("xla"):
        reference = jax_w4a8.quantize_activation(case.x, block=block)
    with jax_w4a8.use_backend(name):
        y, a = case.compute(block)
    same = all(
        np.array_equal(np.asarray(ours).view(np.uint8), np.asarray(theirs).view(np.uint8))
        for ours, theirs in ((a.codes, reference.codes), (a.scales, reference.scales))
    )
    expected, terms = case.expected(reference)
    bound = backends.get(name).accuracy * terms + 2.0**-24 * abs(expected)
    error = np.max(
        abs(np.asarray(y, np.float64).reshape(-1, N) - expected) / np.maximum(bound, 1e-30)
    )
    ok = bool(error <= 1) and same
    verdict = "same" if same else "DIFFER"
    bits = "-"
    if name == "sm100":
        got = np.asarray(y, np.float32).reshape(-1, N).view(np.uint32)
        differing = np.count_nonzero(got != case.predicted(reference, block))
        bits = f"{differing} of {got.size} differ" if differing else "as predicted"
    print(
        f"{name:8} {case.kind:8} {block!s:>5} {error:14.3f}  {verdict:6}  {bits}"
        f"{'' if ok else '  FAILED'}"
    )
    return ok
