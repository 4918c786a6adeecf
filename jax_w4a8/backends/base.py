"""What a backend is: the interface that every file beside this one fills in."""

from __future__ import annotations

from typing import Any

import jax

from jax_w4a8.product import Product

Arrays = tuple[jax.Array, ...]


class BackendError(RuntimeError):
    """A backend that was named cannot serve; the message says which, why, and what to do."""


class Backend:
    """One way to compute a product. See ``docs/backends.md`` for operands and target names.

    ``product``, ``quantize``, ``pack`` and ``unpack`` are traceable JAX functions; compiled code
    is reached through ``jax.ffi.ffi_call``, so that emitting a call never needs the extension.
    """

    name: str
    platforms: tuple[str, ...] = ()
    """Lowering platforms that its code can be emitted for; empty for every platform."""
    layouts: tuple[str, ...] = ("plain",)
    """Weight layouts that its kernels take, the fastest first."""

    accuracy: float = 2.0**-20
    """Bound of the error of a sum, relative to the sum of its terms' magnitudes."""

    def missing(self) -> str | None:
        """Why nothing of this backend can run in this process, or None."""
        return None

    def refuses(self, product: Product) -> str | None:
        """Why its kernels cannot compute ``product``, from the description alone, or None."""
        return None

    def refuses_device(self, device: Any) -> str | None:
        """Why ``device`` (a ``jax.Device``) cannot run this backend's kernels, or None."""
        return None

    def yields(self, product: Product) -> str | None:
        """Why "auto" does better with a later backend, though this one computes ``product``."""
        return None

    def kernels(self) -> tuple[str, ...]:
        """Names of the compiled kernels of this process, whether or not a device takes them."""
        return ()

    def targets(self) -> tuple[str, ...]:
        """Names of the custom calls that its code may hold; none where it is plain JAX."""
        if not self.platforms:
            return ()
        operations = ("dense", "grouped", "masked", "quantize")
        return tuple(f"jax_w4a8_{self.name}_{operation}_v1" for operation in operations)

    def quantize(self, x: jax.Array, block: int) -> Arrays:
        """Quantises ``x`` ``[..., K]`` to codes ``[..., K]`` and scales ``[..., blocks]``."""
        raise NotImplementedError

    def product(
        self, product: Product, x: Arrays, sizes: jax.Array | None, weight: Arrays
    ) -> jax.Array:
        """Computes ``product``; ``x`` is ``(x,)`` or ``(codes, scales)``; dense: no ``sizes``."""
        raise NotImplementedError

    def pack(self, codes: jax.Array, scales: jax.Array, n: int, k: int) -> Arrays:
        """Brings plain codes and scales into ``layouts[0]``."""
        return codes, scales

    def unpack(self, arrays: Arrays, n: int, k: int) -> Arrays:
        """Brings arrays in ``layouts[0]`` back to plain codes and scales."""
        codes, scales = arrays
        return codes, scales
