"""Native CPU kernels behind XLA FFI custom calls (``csrc/host``)."""

from __future__ import annotations

import jax

from jax_w4a8.backends import custom_calls
from jax_w4a8.backends.base import Arrays, Backend
from jax_w4a8.backends.extension import Extension, load
from jax_w4a8.product import Product


class HostBackend(Backend):
    """C++ kernels that decode FP4 in registers; AVX-512, AVX2 or neither, chosen at run time."""

    name = "host"
    platforms = ("cpu",)

    def missing(self) -> str | None:
        return _extension().reason

    def yields(self, product: Product) -> str | None:
        module = _extension().module
        if module is None or not module.has_matrix_instructions():
            return None
        # How many rows a masked product has is known on the device only.
        if product.kind == "masked" or product.m < _MANY_ROWS * product.groups:
            return None
        return f"XLA's dot uses this CPU's matrix instructions, faster from {_MANY_ROWS} rows on"

    def kernels(self) -> tuple[str, ...]:
        module = _extension().module
        if module is None:
            return ()
        return tuple(f"{target} ({module.instruction_set()})" for target in module.registrations())

    def quantize(self, x: jax.Array, block: int) -> Arrays:
        return custom_calls.quantize("jax_w4a8_host_quantize_v1", (x,), block)

    def product(
        self, product: Product, x: Arrays, sizes: jax.Array | None, weight: Arrays
    ) -> jax.Array:
        call = jax.ffi.ffi_call(
            f"jax_w4a8_host_{product.kind}_v1",
            jax.ShapeDtypeStruct(product.out_shape, product.out_dtype),
        )
        operands = (*x, *(() if sizes is None else (sizes,)), *weight)
        return call(*operands, n=product.n, k=product.k, block=product.block)


BACKEND = HostBackend()

# Where XLA's bfloat16 dot with AMX, dequantising included, overtakes the kernels here.
_MANY_ROWS = 64


def _extension() -> Extension:
    return load("_host", "cpu", "install jax_w4a8 with a C++ compiler at hand to build it")
