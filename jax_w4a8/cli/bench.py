"""``python -m jax_w4a8 bench``: products of this machine's backends and of XLA, timed in one run.

Every time is that of one product inside one compiled function which holds many, each with operands
of its own: weights come from memory, not from the last level of cache, and dispatching is shared.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import math
import pathlib
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jax_w4a8
from jax_w4a8 import QuantizedWeight, backends
from jax_w4a8.backends.selection import platform_here, why_not
from jax_w4a8.cli.info import example
from jax_w4a8.product import Kind

# (N, K) of dense products; (rows, experts, N, K) of grouped ones.
DENSE = ((8192, 8192), (4096, 7168), (5760, 2880))
ROWS = (1, 8, 16, 32, 64, 128, 256, 1024, 4096)
GROUPED = (
    (64, 32, 5760, 2880),
    (512, 32, 5760, 2880),
    (16384, 32, 5760, 2880),
    (128, 256, 4096, 7168),
    (2048, 256, 4096, 7168),
)
SMALL_DENSE = ((2048, 2048),)
SMALL_GROUPED = ((64, 32, 5760, 2880),)
SMALL_ROWS = (1, 16, 128)


@dataclasses.dataclass(frozen=True)
class Shape:
    """A product to time; ``experts`` is 0 for a dense one."""

    m: int
    experts: int
    n: int
    k: int

    @property
    def weights(self) -> int:
        """Elements of one weight."""
        return max(self.experts, 1) * self.n * self.k


@dataclasses.dataclass(frozen=True)
class Contender:
    """A way to compute a product: how to make its weight, and the function of (x, w, sizes)."""

    name: str
    make: Callable[[Shape, int], Any]
    run: Callable[[Any, Any, jax.Array], jax.Array]
    bytes_per_weight: float


def contenders(grouped: bool, names: Sequence[str]) -> Iterator[Contender]:
    """Those of ``names`` that can run here."""
    kind: Kind = "grouped" if grouped else "dense"
    for name in backends.NAMES:
        served = why_not(backends.get(name), example(kind), platform_here(), named=True) is None
        for block in (128, "row", 32):
            label = f"{name}, block {block}"
            if served and any(label.startswith(n) for n in names):
                make, run = functools.partial(_packed, name), functools.partial(_ours, name, block)
                yield Contender(label, make, run, 0.53125)
    if "bfloat16" in names:
        yield Contender("XLA bfloat16", _bfloat16, _bfloat16_dot, 2)
    if "float8" in names and not grouped:
        yield Contender("XLA float8", _float8, _float8_dot, 1)


def _ours(name: str, block: Any, x: Any, w: QuantizedWeight, sizes: jax.Array) -> jax.Array:
    with jax_w4a8.use_backend(name):
        if w.ndim == 2:
            return jax_w4a8.dot(x, w, block=block)
        return jax_w4a8.grouped_dot(x, w, sizes, block=block)


def _random_weight(shape: Shape, seed: int) -> QuantizedWeight:
    lead = (shape.experts,) if shape.experts else ()
    key = jax.random.key(seed)
    codes = jax.random.bits(key, (*lead, shape.n, shape.k // 2), jnp.uint8)
    scales = 118 + jax.random.bits(key, (*lead, shape.n, shape.k // 32), jnp.uint8) % 6
    return QuantizedWeight(codes, scales)


def _packed(name: str, shape: Shape, seed: int) -> QuantizedWeight:
    return jax_w4a8.prepack(_random_weight(shape, seed), layout=backends.get(name).layouts[0])


def _bfloat16(shape: Shape, seed: int) -> jax.Array:
    lead = (shape.experts,) if shape.experts else ()
    return jax.random.normal(jax.random.key(seed), (*lead, shape.k, shape.n), jnp.bfloat16)


def _bfloat16_dot(x: jax.Array, w: jax.Array, sizes: jax.Array) -> jax.Array:
    return x @ w if w.ndim == 2 else jax.lax.ragged_dot(x, w, sizes)


def _float8(shape: Shape, seed: int) -> jax.Array:
    w = jax.random.normal(jax.random.key(seed), (shape.n, shape.k), jnp.bfloat16)
    return w.astype(jnp.float8_e4m3fn)


def _float8_dot(x: jax.Array, w: jax.Array, _: jax.Array) -> jax.Array:
    codes = x.astype(jnp.float8_e4m3fn)
    return jax.lax.dot_general(
        codes, w, (((1,), (1,)), ((), ())), preferred_element_type=jnp.bfloat16
    )


def measure(shape: Shape, contender: Contender, repeats: int, budget: int) -> float:
    """Seconds of one product: the median of ``repeats`` calls that hold many each."""
    # At least 150 MB of weights, three times an H200's L2, go by before one comes again.
    weight_bytes = max(contender.bytes_per_weight * shape.weights, 1)
    count = min(max(math.ceil(150e6 / weight_bytes) + 1, 3), 24)
    weights = [contender.make(shape, seed) for seed in range(count)]
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(shape.m, shape.k)), jnp.bfloat16)
    groups = max(shape.experts, 1)
    sizes = jnp.asarray(np.bincount(rng.integers(0, groups, shape.m), minlength=groups), jnp.int32)
    total = int(min(max(budget // (shape.m * shape.weights), count), 200))

    @jax.jit
    def many(x: Any, weights: Any, sizes: jax.Array) -> Any:
        # Each waits for the last, so that none are merged, left out or run side by side.
        results = [contender.run(x, weights[0], sizes)]
        for i in range(1, total):
            x, results[-1] = jax.lax.optimization_barrier((x, results[-1]))
            results.append(contender.run(x, weights[i % count], sizes))
        return results

    compiled = many.lower(x, weights, sizes).compile()
    jax.block_until_ready(compiled(x, weights, sizes))
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        jax.block_until_ready(compiled(x, weights, sizes))
        times.append((time.perf_counter() - start) / total)
    return statistics.median(times)


def shapes_of(options: argparse.Namespace, gpu: bool) -> tuple[list[Shape], list[Shape]]:
    """Dense and grouped shapes to time."""
    rows = options.rows or (ROWS if gpu else SMALL_ROWS)
    dense = [Shape(m, 0, n, k) for n, k in (DENSE if gpu else SMALL_DENSE) for m in rows]
    grouped = [Shape(*shape) for shape in (GROUPED if gpu else SMALL_GROUPED)]
    return (dense if options.kind != "grouped" else []), (
        grouped if options.kind != "dense" else []
    )


def main(argv: Sequence[str]) -> int:
    """Prints a table and writes it as JSON; returns 0."""
    parser = argparse.ArgumentParser(prog="python -m jax_w4a8 bench", description=__doc__)
    parser.add_argument("--kind", choices=("dense", "grouped", "all"), default="all")
    parser.add_argument("--rows", type=int, nargs="+", help="M of the dense products")
    parser.add_argument(
        "--contenders",
        nargs="+",
        default=[*backends.NAMES, "bfloat16", "float8"],
        help="backends ('sm90', or 'sm90, block 128' alone), bfloat16, float8",
    )
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--json", type=pathlib.Path, help="file for the figures")
    options = parser.parse_args(argv)
    gpu = platform_here() != "cpu"
    device = jax.local_devices()[0].device_kind
    print(f"jax_w4a8 {jax_w4a8.__version__}, jax {jax.__version__}, {device}", flush=True)
    dense, grouped = shapes_of(options, gpu)
    rows = []
    budget = 3 * 10**12 if gpu else 10**10
    for shape in (*dense, *grouped):
        for contender in contenders(shape.experts > 0, options.contenders):
            seconds = measure(shape, contender, options.repeats, budget)
            flops = 2 * shape.m * shape.n * shape.k / seconds
            moved = contender.bytes_per_weight * shape.weights / seconds
            rows.append(
                dataclasses.asdict(shape) | {"contender": contender.name, "us": seconds * 1e6}
            )
            print(
                f"{shape.m:6} x {shape.n} x {shape.k} E={shape.experts:3} {contender.name:18} "
                f"{seconds * 1e6:10.1f} us {flops * 1e-12:8.1f} TFLOP/s {moved * 1e-9:7.0f} GB/s",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps({"device": device, "products": rows}, indent=1))
    print(f"bench: {len(rows)} timed")
    return 0
