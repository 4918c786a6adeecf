"""``prepack`` and ``unpack``: weights in the layout of the kernel that will take them."""

from __future__ import annotations

import functools
from typing import Any

import jax
import numpy as np

from jax_w4a8 import backends
from jax_w4a8.backends import registry
from jax_w4a8.backends.selection import platform_here, reasons
from jax_w4a8.product import Kind, Product
from jax_w4a8.weights import QuantizedWeight


def prepack(w: QuantizedWeight, *, layout: str | None = None) -> QuantizedWeight:
    """Brings a weight into the layout of the kernels that will compute its products.

    Done once, when a model is loaded; a product packs a plain weight anew at every call.

    Args:
      w: a weight in the plain layout; one in ``layout`` already is returned as it is.
      layout: a layout's name, to pack for another machine; by default that of the backend which
        serves ``w`` on this process's default device under the selected backend.

    Returns:
      The same weight in that layout.

    Raises:
      TypeError: ``w`` is not a ``QuantizedWeight``.
      ValueError: no backend has that layout, or ``w`` is packed for another one.
      BackendError: the selected backend cannot serve ``w`` here.
    """
    _check(w)
    target = _best_layout(w) if layout is None else layout
    owner = registry.owner(target)
    if owner is None:
        layouts = dict.fromkeys(registry.get(n).layouts[0] for n in registry.NAMES)
        known = ", ".join(map(repr, layouts))
        raise ValueError(f"layout: expected one of {known}; got {target!r}")
    if w.layout == target:
        return w
    if w.layout != "plain":
        raise ValueError(
            f"w: expected a weight in the plain layout, got {w!r}; call jax_w4a8.unpack(w) first"
        )
    arrays = _pack(owner.name, w.codes, w.scales, w.n, w.k)
    return QuantizedWeight.from_arrays(arrays, k=w.k, n=w.n, layout=target)


def unpack(w: QuantizedWeight) -> QuantizedWeight:
    """Brings a weight back to the plain layout, with its original codes and scales.

    Raises:
      TypeError: ``w`` is not a ``QuantizedWeight``.
    """
    _check(w)
    if w.layout == "plain":
        return w
    owner = registry.owner(w.layout)
    if owner is None:
        raise ValueError(f"w: its layout {w.layout!r} belongs to no backend of this version")
    arrays = _unpack(owner.name, w.arrays, w.n, w.k)
    return QuantizedWeight.from_arrays(arrays, k=w.k, n=w.n, layout="plain")


def _check(w: Any) -> None:
    if not isinstance(w, QuantizedWeight):
        raise TypeError(
            f"w: expected a QuantizedWeight, got {type(w).__name__}; "
            "quantise it with jax_w4a8.quantize(w)"
        )


def _best_layout(w: QuantizedWeight) -> str:
    kind: Kind = "grouped" if w.lead else "dense"
    groups = w.lead[0] if w.lead else 1
    bfloat16 = np.dtype(jax.numpy.bfloat16)
    product = Product(kind, 16, w.n, w.k, groups, 128, "plain", bfloat16, bfloat16)
    name = backends.current()
    platform = platform_here()
    if name == "auto":
        name = next(n for n, reason in reasons(product, platform).items() if reason is None)
    return backends.choose(name, product, platform).layouts[0]


@functools.partial(jax.jit, static_argnums=(0, 3, 4))
def _pack(name: str, codes: jax.Array, scales: jax.Array, n: int, k: int) -> Any:
    return registry.get(name).pack(codes, scales, n, k)


@functools.partial(jax.jit, static_argnums=(0, 2, 3))
def _unpack(name: str, arrays: Any, n: int, k: int) -> Any:
    return registry.get(name).unpack(arrays, n, k)
