"""The SM90 kernels against float64 on a Hopper GPU, by hand: ``python tests/sm90/device/check.py``.

Prints the worst error of each product as a share of the sum of the terms' magnitudes, and exits
with 1 when one is past the backend's bound, differs between runs, or is not exact where it must be.
"""

from __future__ import annotations

import hashlib
import sys

import jax
import jax.numpy as jnp
import numpy as np

import jax_w4a8
from jax_w4a8.backends.sm90 import BACKEND, use_tile

TILES = {
    32: ("16x64_fine", "64x64_fine", "128x128_fine"),
    128: ("16x64", "32x64", "64x64", "128x128"),
}
FAILURES: list[str] = []


def report(name: str, error: float, ok: bool) -> None:
    print(f"{name:70} {error:9.2e} {'' if ok else 'FAILED'}", flush=True)
    if not ok:
        FAILURES.append(name)


def weight(rng: np.random.Generator, lead: tuple[int, ...], n: int, k: int, spread: int):
    """Random codes and scales; a row's scales lie within ``spread`` binades."""
    padded = -(-k // 32) * 32
    codes = rng.integers(0, 256, (*lead, n, padded // 2), np.uint8)
    values = np.arange(padded) < k
    codes &= (values[0::2] * 0x0F + values[1::2] * 0xF0).astype(np.uint8)
    scales = rng.integers(118, 119 + spread, (*lead, n, padded // 32)).astype(np.uint8)
    return jax_w4a8.QuantizedWeight(codes, scales, k=k)


def product(kind: str, x, w, sizes, block, out):
    if kind == "dense":
        return jax_w4a8.dot(x, w, block=block, out_dtype=out)
    if kind == "grouped":
        return jax_w4a8.grouped_dot(x, w, sizes, block=block, out_dtype=out)
    return jax_w4a8.masked_grouped_dot(x, w, sizes, block=block, out_dtype=out)


def expected(kind: str, a, w, sizes) -> tuple[np.ndarray, np.ndarray]:
    """The product and the sum of its terms' magnitudes in float64, rows laid end to end."""
    x = np.asarray(a.dequantize(jnp.float32), np.float64)
    m, groups = x.shape[-2], (w.shape[0] if w.ndim == 3 else 1)
    x = x.reshape(-1, x.shape[-1])
    values = np.asarray(w.dequantize(), np.float64).reshape(groups, w.k, w.n)
    if kind == "dense":
        spans = [(0, 0, m)]
    elif kind == "grouped":
        ends = np.cumsum(sizes)
        spans = [(g, ends[g] - sizes[g], ends[g]) for g in range(groups)]
    else:
        spans = [(g, g * m, g * m + sizes[g]) for g in range(groups)]
    y, terms = np.zeros((len(x), w.n)), np.zeros((len(x), w.n))
    for g, begin, end in spans:
        y[begin:end] = x[begin:end] @ values[g]
        terms[begin:end] = abs(x[begin:end]) @ abs(values[g])
    return y, terms


def sizes_of(rng, kind: str, m: int, groups: int) -> np.ndarray:
    if kind == "masked":
        return rng.integers(0, m + 1, groups)
    return rng.multinomial(m - m // 8, rng.dirichlet(np.ones(groups) / 2))


def check(
    rng, kind, m, n, k, groups, block, spread, dtype=jnp.bfloat16, out=jnp.float32, tile="", split=0
):
    w = weight(rng, () if kind == "dense" else (groups,), n, k, spread)
    x = rng.normal(size=(groups, m, k) if kind == "masked" else (m, k)) * 2.0 ** rng.integers(
        -8, 8, (m, 1)
    )
    sizes = sizes_of(rng, kind, m, groups)
    if kind == "grouped":
        x[sizes.sum() :] = np.nan
    elif kind == "masked":
        x[np.arange(m) >= sizes[:, None]] = np.nan
    x = jnp.asarray(x, dtype)
    counts = jnp.asarray(sizes, jnp.int32)
    with jax_w4a8.use_backend("xla"):
        a = jax_w4a8.quantize_activation(x, block=block)
    with jax_w4a8.use_backend("sm90"), use_tile(tile, split):
        packed = jax_w4a8.prepack(w, layout="sm90")
        run = jax.jit(lambda x, w, c: product(kind, x, w, c, block, out))
        y, again = run(x, packed, counts), run(x, packed, counts)
        other = jax.jit(lambda a, w, c: product(kind, a, w, c, block if kind == "" else None, out))(
            a, packed, counts
        )
    y, again, other = (np.asarray(v, np.float64).reshape(-1, n) for v in (y, again, other))
    reference, terms = expected(kind, a, w, sizes)
    rounding = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}[np.dtype(out).name]
    excess = np.maximum(abs(y - reference) - rounding * abs(reference), 0)
    error = float(np.nanmax(excess / np.maximum(terms, 1e-30))) if np.isfinite(y).all() else np.inf
    ok = error <= BACKEND.accuracy and np.array_equal(y, again) and np.array_equal(y, other)
    note = "" if np.array_equal(y, again) else " differs between runs"
    note += "" if np.array_equal(y, other) else " differs with quantised x"
    name = f"{kind} {m}x{n}x{k} E={groups} block={block} spread={spread} {np.dtype(out).name}"
    name += f" {tile}/{split}{note}"
    report(name, error, ok)


def powers_of_two(rng) -> None:
    k, n, m = 1024, 192, 33
    w = weight(rng, (), n, k, 3)
    codes = rng.choice(np.array([0x22, 0xA2, 0x2A, 0xAA, 0x00], np.uint8), (n, k // 2))
    w = jax_w4a8.QuantizedWeight(codes, np.full((n, k // 32), 127, np.uint8))
    x = jnp.asarray(rng.choice([0.0, 1.0, -1.0, 2.0], (m, k)), jnp.bfloat16)
    with jax_w4a8.use_backend("sm90"):
        y = jax_w4a8.dot(x, jax_w4a8.prepack(w, layout="sm90"), out_dtype=jnp.float32)
    exact = np.asarray(x, np.float64) @ np.asarray(w.dequantize(), np.float64)
    report(
        "powers of two are exact", float(abs(np.asarray(y) - exact).max()), np.array_equal(y, exact)
    )


def repeats(rng) -> None:
    """A chain of products 20 times; prints a digest to compare runs with each other."""
    x = jnp.asarray(rng.normal(size=(40, 2048)), jnp.bfloat16)
    w = [weight(rng, (), 2048, 2048, 5) for _ in range(6)]

    @jax.jit
    def chain(x, weights):
        for packed in weights:
            x = jnp.tanh(jax_w4a8.dot(x, packed) * 1e-3)
        return x

    with jax_w4a8.use_backend("sm90"):
        packed = [jax_w4a8.prepack(v, layout="sm90") for v in w]
        results = [np.asarray(chain(x, packed), np.float32).tobytes() for _ in range(20)]
    digest = hashlib.sha256(results[0]).hexdigest()[:16]
    report(f"20 runs of a chain, {digest}", 0.0, len(set(results)) == 1)


def main() -> int:
    rng = np.random.default_rng(0)
    if sys.argv[1:] == ["repeats"]:
        repeats(rng)
        return 1 if FAILURES else 0
    repeats(np.random.default_rng(0))
    print(jax.devices()[0].device_kind)
    powers_of_two(rng)
    for block in (128, "row", 32):
        for tile in TILES[32 if block == 32 else 128]:
            for split in (1, 2, 4):
                check(rng, "dense", 37, 200, 1184, 1, block, 9, tile=tile, split=split)
        for m, n, k, spread in [
            (1, 1, 32, 3),
            (5, 64, 48, 3),
            (16, 130, 2880, 14),
            (64, 96, 160, 20),
            (129, 257, 640, 40),
        ]:
            check(rng, "dense", m, n, k, 1, block, spread)
        for kind in ("grouped", "masked"):
            check(rng, kind, 40, 96, 416, 5, block, 9)
            check(rng, kind, 300, 130, 256, 33, block, 15)
    for out in (jnp.bfloat16, jnp.float16, jnp.float32):
        check(rng, "dense", 130, 128, 512, 1, 128, 5, dtype=out, out=out)
    check(rng, "dense", 1000, 520, 4096, 1, 128, 5)
    check(rng, "grouped", 1500, 264, 2048, 8, 128, 5)
    print(f"check: {len(FAILURES)} failed" if FAILURES else "check: ok")
    return 1 if FAILURES else 0


if __name__ == "__main__":
    sys.exit(main())
