"""Which backend computes a product: one switch, read when the product is traced.

The choice itself is made when the product is lowered, for the platform it is lowered to, so that
one traced function can be lowered for a CPU here and exported for a GPU elsewhere.
"""

from __future__ import annotations

import functools
import os
import threading
from typing import Any, Self

import jax

from jax_w4a8.backends import registry
from jax_w4a8.backends.base import Backend, BackendError
from jax_w4a8.product import Product

AUTO = "auto"
VARIABLE = "JAX_W4A8_BACKEND"

# A user context is part of jit's cache key: a function traced under one backend is traced again
# under another. None means that nobody has chosen.
_chosen = jax.make_user_context(default_value=None)

# Selections for the process, the latest last. Entering one as a context manager takes it out
# again, which threads may do in any order.
_for_process: list[use_backend] = []
_lock = threading.Lock()


class use_backend:
    """Selects the backend of every product traced from here on.

    For the process when called, or for a block of one thread as a context manager::

        jax_w4a8.use_backend("xla")

        with jax_w4a8.use_backend("host"):
            y = jax_w4a8.dot(x, w)

    Args:
      name: ``"auto"`` takes the fastest backend that can serve and falls back to ``"xla"``; any
        other name is taken at its word, and a product it cannot serve raises ``BackendError``.

    Raises:
      ValueError: ``name`` is not a backend.
    """

    def __init__(self, name: str):
        self._name = _checked(name, "name")
        self._scopes: list[Any] = []
        with _lock:
            _for_process.append(self)
            _chosen.set_global(self._name)

    def __enter__(self) -> Self:
        with _lock:
            if self in _for_process:
                _for_process.remove(self)
                _chosen.set_global(_for_process[-1]._name if _for_process else None)
        self._scopes.append(_chosen(self._name))
        self._scopes[-1].__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._scopes.pop().__exit__(*error)


def current() -> str:
    """The selected backend: what ``use_backend`` said, else ``$JAX_W4A8_BACKEND``, else "auto"."""
    return _chosen.value or _from_environment()


@functools.cache
def _from_environment() -> str:
    return _checked(os.environ.get(VARIABLE) or AUTO, f"the environment variable {VARIABLE}")


def _checked(name: Any, argument: str) -> str:
    if name == AUTO or name in registry.NAMES:
        return name
    known = ", ".join((AUTO, *registry.NAMES))
    raise ValueError(f"{argument}: expected one of {known}; got {name!r}")


def choose(name: str, product: Product, platform: str) -> Backend:
    """The backend that computes ``product`` when it is lowered for ``platform``.

    Raises:
      BackendError: the named backend cannot serve, or the weight's layout fits no backend here.
    """
    if name != AUTO:
        backend = registry.get(name)
        reason = why_not(backend, product, platform, named=True)
        if reason is None:
            return backend
        raise BackendError(
            f"backend {name!r} cannot compute this {product}: {reason}. Use "
            f"jax_w4a8.use_backend({AUTO!r}) to let another backend serve"
        )
    refusals = reasons(product, platform)
    for candidate, reason in refusals.items():
        if reason is None:
            return registry.get(candidate)
    listed = "; ".join(f"{candidate}: {reason}" for candidate, reason in refusals.items())
    raise BackendError(f"no backend can compute this {product} on {platform}: {listed}")


def reasons(product: Product, platform: str) -> dict[str, str | None]:
    """For each backend, best first, why "auto" passes it over for ``product``, or None."""
    return {
        name: why_not(registry.get(name), product, platform, named=False) for name in registry.NAMES
    }


def why_not(backend: Backend, product: Product, platform: str, *, named: bool) -> str | None:
    """Why ``backend`` cannot compute ``product`` on ``platform``, or None if it can."""
    if backend.platforms and platform not in backend.platforms:
        return f"it runs on {' and '.join(backend.platforms)}, not on {platform}"
    if product.layout not in backend.layouts and product.layout != "plain":
        return (
            f"the weight is in the layout {product.layout!r}, which its kernels do not take; "
            "jax_w4a8.unpack(w) gives the plain layout, which every backend takes"
        )
    reason = backend.refuses(product) or _why_not_here(backend, platform, named)
    return reason if reason or named else backend.yields(product)


def _why_not_here(backend: Backend, platform: str, named: bool) -> str | None:
    if not backend.platforms:
        return None
    devices = devices_of(platform)
    if not devices:
        # Lowering for a platform that this process has not: only an explicit name says that the
        # device there will be of the right kind.
        return None if named else f"this process has no {platform} device to look at"
    refusals = (backend.refuses_device(device) for device in devices)
    return next((r for r in refusals if r), None) or backend.missing()


@functools.cache
def devices_of(platform: str) -> tuple[Any, ...]:
    """This process's devices of ``platform``; empty when JAX has no such backend."""
    try:
        return tuple(jax.local_devices(backend=platform))
    except RuntimeError:
        return ()


def platform_here() -> str:
    """The lowering platform of this process's default device."""
    return jax.local_devices()[0].platform.replace("gpu", _gpu_platform())


@functools.cache
def _gpu_platform() -> str:
    return "cuda" if devices_of("cuda") else "rocm"
