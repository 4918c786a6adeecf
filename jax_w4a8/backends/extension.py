"""Loads a compiled extension module once and registers its custom-call targets.

Nothing here runs at import. A module that is absent is an ordinary state; one that is there but
cannot be used (an undefined symbol, built for a newer jaxlib) warns once and is then treated as
absent, because registering a target that jaxlib rejects would leave all of JAX unable to start.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import pathlib
import re
import types
import warnings

import jax


@dataclasses.dataclass(frozen=True)
class Extension:
    """The outcome of loading an extension: the module, or the reason why there is none."""

    module: types.ModuleType | None
    reason: str | None


@functools.cache
def load(name: str, platform: str, remedy: str) -> Extension:
    """Loads ``jax_w4a8.<name>`` and registers its targets for ``platform``.

    Args:
      name: module name, such as ``"_host"``.
      platform: FFI platform of the targets: ``"cpu"`` or ``"CUDA"``.
      remedy: what the user does to get the module, put at the end of the reason.
    """
    try:
        module = importlib.import_module(f"jax_w4a8.{name}")
    except ModuleNotFoundError as error:
        if error.name != f"jax_w4a8.{name}":
            return _unusable(name, f"it needs the module {error.name!r}", remedy)
        return Extension(None, f"the extension jax_w4a8.{name} is not built; {remedy}")
    except ImportError as error:
        return _unusable(name, str(error), remedy)
    built, offered = module.ffi_api_version(), jaxlib_ffi_version()
    if built[0] != offered[0] or built[1] > offered[1]:
        return _unusable(
            name,
            f"it was built for XLA FFI {built[0]}.{built[1]} and jaxlib offers "
            f"{offered[0]}.{offered[1]}",
            remedy,
        )
    for target, handler in module.registrations().items():
        jax.ffi.register_ffi_target(target, handler, platform=platform, api_version=1)
    return Extension(module, None)


def jaxlib_ffi_version() -> tuple[int, int]:
    """The ``(major, minor)`` of the XLA FFI that the installed jaxlib implements."""
    header = pathlib.Path(jax.ffi.include_dir(), "xla", "ffi", "api", "c_api.h").read_text()
    version = dict(re.findall(r"#define XLA_FFI_API_(MAJOR|MINOR) (\d+)", header))
    return int(version["MAJOR"]), int(version["MINOR"])


def _unusable(name: str, why: str, remedy: str) -> Extension:
    reason = f"the extension jax_w4a8.{name} cannot be used: {why}; {remedy}"
    warnings.warn(f"jax_w4a8: {reason}", RuntimeWarning, stacklevel=3)
    return Extension(None, reason)
