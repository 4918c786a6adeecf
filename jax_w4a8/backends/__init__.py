"""The backends, and which of them computes a product."""

from jax_w4a8.backends.base import Backend, BackendError
from jax_w4a8.backends.registry import NAMES, get
from jax_w4a8.backends.selection import choose, current, reasons, use_backend

__all__ = [
    "NAMES",
    "Backend",
    "BackendError",
    "choose",
    "current",
    "get",
    "reasons",
    "use_backend",
]
