"""What ``jax.export`` needs to know of this package.

A program with products exports like any other, and runs in a process without the package wherever
``"xla"`` computed them; where a compiled kernel did, the process calls ``load_kernels`` first::

    exported = jax.export.export(
        jax.jit(model), disabled_checks=jax_w4a8.export_safety_checks()
    )(x)
    data = exported.serialize()

    jax_w4a8.load_kernels()  # in the process that runs it
    y = jax.export.deserialize(data).call(x)
"""

from __future__ import annotations

import json
from typing import Any

import jax.export
import numpy as np
from jax.export import DisabledSafetyCheck

from jax_w4a8 import backends
from jax_w4a8.activations import QuantizedActivation
from jax_w4a8.weights import QuantizedWeight


def export_safety_checks() -> list[DisabledSafetyCheck]:
    """The ``disabled_checks`` of ``jax.export.export`` for programs that hold products.

    JAX exports only custom calls that somebody promises to keep. The names of those here carry a
    version of their operands and attributes, and a later release that changes either takes a new
    name.
    """
    targets = (t for name in backends.NAMES for t in backends.get(name).targets())
    return [DisabledSafetyCheck.custom_call(target) for target in targets]


def load_kernels() -> dict[str, str | None]:
    """Loads every extension that is there, so that an exported program finds its kernels.

    Tracing a product does so by itself; a program that comes from ``jax.export.deserialize`` does
    not, and says that no handler is registered for its target.

    Returns:
      For each backend why it has no kernels in this process, or None where it has.
    """
    return {name: backends.get(name).missing() for name in backends.NAMES}


def _weight_to_bytes(static: Any) -> bytes:
    k, n, layout = static
    return json.dumps({"k": k, "n": n, "layout": layout}).encode()


def _weight_from_bytes(data: bytes) -> Any:
    static = json.loads(bytes(data))
    return static["k"], static["n"], static["layout"]


def _activation_to_bytes(static: Any) -> bytes:
    block, dtype = static
    return json.dumps({"block": block, "dtype": np.dtype(dtype).name}).encode()


def _activation_from_bytes(data: bytes) -> Any:
    static = json.loads(bytes(data))
    return static["block"], jax.numpy.dtype(static["dtype"])


jax.export.register_pytree_node_serialization(
    QuantizedWeight,
    serialized_name="jax_w4a8.QuantizedWeight",
    serialize_auxdata=_weight_to_bytes,
    deserialize_auxdata=_weight_from_bytes,
)
jax.export.register_pytree_node_serialization(
    QuantizedActivation,
    serialized_name="jax_w4a8.QuantizedActivation",
    serialize_auxdata=_activation_to_bytes,
    deserialize_auxdata=_activation_from_bytes,
)
