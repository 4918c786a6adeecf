"""What the demo measures of each way to compute the embeddings, and how it prints it."""

from __future__ import annotations

import collections
import dataclasses
import statistics
from typing import Any

import jax
import numpy as np
from flax import nnx

from jax_w4a8.backends import choose
from jax_w4a8.layers import PackedWeight
from jax_w4a8.product import Product


@dataclasses.dataclass(frozen=True)
class Run:
    """One way to compute the embeddings.

    Attributes:
      name: what to call it.
      embeddings: float32 ``[sentences, hidden]``, each of length 1.
      seconds: time of each batch, compilation left out.
      products: each FP4 product of one batch with the backend that computed it, in order.
    """

    name: str
    embeddings: np.ndarray
    seconds: list[float]
    products: list[tuple[Product, str]]


def products(traced: Any) -> list[tuple[Product, str]]:
    """The FP4 products of a traced function, each with the name of the backend that computes it."""
    platform = jax.default_backend()
    return [
        (params["product"], choose(params["backend"], params["product"], platform).name)
        for params in _find(traced.jaxpr.jaxpr, "w4a8_product")
    ]


def linear_bytes(encoder: nnx.Module) -> int:
    """Bytes of the weights of an encoder's linear layers, float or packed."""
    kernels = [
        node.get_value()
        for path, node in nnx.iter_graph(encoder)
        if isinstance(node, (nnx.Param, PackedWeight)) and path[-1] == "kernel"
    ]
    return sum(kernel.nbytes for kernel in kernels)


def cosines(run: Run, reference: Run) -> np.ndarray:
    """The cosine between the two embeddings of each sentence, ``[sentences]``."""
    return np.sum(run.embeddings.astype(np.float64) * reference.embeddings, axis=-1)


def neighbours(run: Run) -> np.ndarray:
    """For each sentence the index of the one nearest to it, ``[sentences]``."""
    similarity = run.embeddings @ run.embeddings.T
    np.fill_diagonal(similarity, -np.inf)
    return np.argmax(similarity, axis=-1)


def show(runs: list[Run], sentences: list[str]) -> None:
    """Prints the comparison of every run with the first, and of the last two."""
    reference = runs[0]
    for run in runs:
        print(f"{run.name}: {_describe(run.products)}")
    print()
    print(
        f"{'':12} {'mean cosine':>12} {'worst cosine':>13} {'same nearest neighbour':>24}", end=""
    )
    print(f" {'ms a batch':>11}")
    for run in runs:
        cosine, same = cosines(run, reference), neighbours(run) == neighbours(reference)
        agree = f"{same.sum()} of {same.size}"
        print(f"{run.name:12} {cosine.mean():12.4f} {cosine.min():13.4f} {agree:>24}", end="")
        print(f" {1e3 * statistics.median(run.seconds):11.1f}")
    host, xla = runs[-2:]
    print(f"\n{host.name} against {xla.name}: worst cosine {cosines(host, xla).min():.6f}")
    print("\nnearest neighbours, " + ", ".join(run.name for run in runs) + ":")
    for i in np.linspace(0, len(sentences) - 1, 4, dtype=int):
        print(f"  {sentences[i]}")
        for found in dict.fromkeys(int(neighbours(run)[i]) for run in runs):
            who = ", ".join(run.name for run in runs if neighbours(run)[i] == found)
            print(f"    -> {sentences[found]}  ({who})")


def _describe(found: list[tuple[Product, str]]) -> str:
    if not found:
        return "float32 products, by XLA"
    counts = collections.Counter((p.m, p.k, p.n, backend) for p, backend in found)
    return "; ".join(
        f"{count} products [{m}, {k}] x [{k}, {n}] by {backend}"
        for (m, k, n, backend), count in counts.items()
    )


def _find(jaxpr: Any, name: str) -> list[dict[str, Any]]:
    found = []
    for equation in jaxpr.eqns:
        if equation.primitive.name == name:
            found.append(equation.params)
        for value in jax.tree.leaves(list(equation.params.values())):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                found += _find(inner, name)
    return found
