"""``python -m jax_w4a8 info``: which backends serve here, and why the others do not."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence

import jax
import jaxlib
import numpy as np

import jax_w4a8
from jax_w4a8 import backends
from jax_w4a8.backends.selection import VARIABLE, platform_here, reasons
from jax_w4a8.product import Kind, Product

KINDS: tuple[Kind, ...] = ("dense", "grouped", "masked")


def main(argv: Sequence[str]) -> int:
    """Prints the report; returns 0, or 1 if the environment names no backend."""
    parser = argparse.ArgumentParser(prog="python -m jax_w4a8 info", description=__doc__)
    parser.parse_args(argv)
    platform = platform_here()
    devices = ", ".join(sorted({d.device_kind for d in jax.local_devices()}))
    print(f"jax_w4a8 {jax_w4a8.__version__}, jax {jax.__version__}, jaxlib {jaxlib.__version__}")
    print(f"platform {platform}: {len(jax.local_devices())} x {devices}")
    try:
        backend = backends.current()
    except ValueError as error:
        print(error)
        return 1
    setting = os.environ.get(VARIABLE)
    print(f"backend {backend!r}" + (f" ({VARIABLE}={setting})" if setting else ""))
    print()
    by_kind = {kind: reasons(example(kind), platform) for kind in KINDS}
    for name in backends.NAMES:
        why = {kind: by_kind[kind][name] for kind in KINDS}
        print(f"{name:6} {_summary(why)}")
        kernels = backends.get(name).kernels()
        if kernels:
            print(f"       {len(kernels)} kernels built:")
        for kernel in kernels:
            print(f"         {kernel}")
    served = {kind: _first(by_kind[kind]) for kind in KINDS}
    print()
    print("auto takes: " + ", ".join(f"{name} for {kind}" for kind, name in served.items()))
    return 0


def example(kind: Kind) -> Product:
    """A product that every backend's kernels are made for."""
    bfloat16 = np.dtype(jax.numpy.bfloat16)
    groups = 1 if kind == "dense" else 8
    return Product(kind, 16, 4096, 4096, groups, 128, "plain", bfloat16, bfloat16)


def _summary(why: Mapping[Kind, str | None]) -> str:
    serves = [kind for kind, reason in why.items() if reason is None]
    if len(serves) == len(why):
        return "serves dense, grouped and masked products"
    refusals = sorted({reason for reason in why.values() if reason})
    if not serves:
        return "does not serve: " + "; ".join(refusals)
    return f"serves {', '.join(serves)} products only: " + "; ".join(refusals)


def _first(reasons: dict[str, str | None]) -> str:
    return next(name for name, reason in reasons.items() if reason is None)
