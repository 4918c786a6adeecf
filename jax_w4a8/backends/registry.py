"""The list of backends, in the order in which "auto" tries them."""

from __future__ import annotations

import functools
import importlib

from jax_w4a8.backends.base import Backend

NAMES = ("sm100", "sm90", "host", "xla")


@functools.cache
def get(name: str) -> Backend:
    """The backend ``name``, from the file of that name beside this one."""
    return importlib.import_module(f"jax_w4a8.backends.{name}").BACKEND


def owner(layout: str) -> Backend | None:
    """The backend whose own layout ``layout`` is, or None."""
    for name in NAMES:
        if get(name).layouts[0] == layout:
            return get(name)
    return None
