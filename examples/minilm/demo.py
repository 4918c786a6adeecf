"""Embeds sentences with a real model whose linear weights are FP4, on the CPU.

all-MiniLM-L6-v2 in float32, in W4A8 by the native kernels ("host"), and in W4A8 by the fallback in
plain JAX ("xla"); then how well and how fast each did.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import jax
import numpy as np
import tqdm
from flax import nnx
from model import Encoder, load, tokenize
from report import Run, cosines, linear_bytes, products, show
from sentences import first_lines

import jax_w4a8
from jax_w4a8.layers import quantize_layers

SENTENCES = 150
BATCH = 15


def lower(graph: Any, state: Any, ids: np.ndarray, mask: np.ndarray) -> tuple[Any, Any]:
    """The encoder of ``nnx.split``, traced and lowered for one batch by the selected backend."""

    def forward(state: Any, ids: jax.Array, mask: jax.Array) -> jax.Array:
        return nnx.merge(graph, state)(ids, mask)

    traced = jax.jit(forward).trace(state, ids, mask)
    return traced, traced.lower()


def embed(name: str, encoder: Encoder, ids: np.ndarray, mask: np.ndarray, backend: str) -> Run:
    """Embeddings of all sentences by one backend, with the time of each batch."""
    graph, state = nnx.split(encoder)
    with jax_w4a8.use_backend(backend):
        traced, lowered = lower(graph, state, ids[:BATCH], mask[:BATCH])
        compiled = lowered.compile()
    jax.block_until_ready(compiled(state, ids[:BATCH], mask[:BATCH]))
    embeddings, seconds = [], []
    for start in tqdm.trange(0, len(ids), BATCH, desc=f"{name:11}", unit="batch"):
        batch = slice(start, start + BATCH)
        began = time.perf_counter()
        embeddings.append(np.asarray(compiled(state, ids[batch], mask[batch])))
        seconds.append(time.perf_counter() - began)
    return Run(name, np.concatenate(embeddings), seconds, products(traced))


def run() -> tuple[list[Run], list[str], tuple[int, int]]:
    """Everything that the demo computes.

    Returns:
      The runs, float32 first; the sentences; bytes of the linear weights before and after.
    """
    sentences = first_lines(SENTENCES)
    ids, mask = tokenize(sentences)
    print(f"{SENTENCES} sentences in batches of {BATCH}, padded to {ids.shape[1]} tokens")
    encoder = load()
    before = linear_bytes(encoder)
    runs = [embed("float32", encoder, ids, mask, "auto")]
    quantize_layers(encoder, where=lambda path: path[0] == "layers")
    for backend in ("host", "xla"):
        runs.append(embed(f"W4A8, {backend}", encoder, ids, mask, backend))
    return runs, sentences, (before, linear_bytes(encoder))


def main() -> None:
    """Computes, prints, and says in one line how it went."""
    began = time.perf_counter()
    try:
        runs, sentences, (before, after) = run()
    except (jax_w4a8.BackendError, FileNotFoundError) as error:
        sys.exit(f"demo: {error}")
    print(f"linear weights: {before:,} bytes in float32, {after:,} bytes in FP4", end="")
    print(f", {before / after:.2f} times smaller")
    show(runs, sentences)
    cosine = cosines(runs[1], runs[0]).mean()
    print(
        f"\nFP4 weights in {before / after:.1f} times fewer bytes embed at a mean cosine of ",
        end="",
    )
    print(f"{cosine:.3f} to float32; took {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
