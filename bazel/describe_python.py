"""Prints, as JSON, what Bazel needs to know of the interpreter that runs this."""

from __future__ import annotations

import importlib.util
import json
import pathlib
import sys
import sysconfig

REQUIRED = ("jax", "jaxlib", "nanobind", "numpy", "pytest")


def package(name: str) -> pathlib.Path | None:
    """The folder of an installed package, which is not imported."""
    spec = importlib.util.find_spec(name)
    return pathlib.Path(spec.origin).parent if spec and spec.origin else None


def main() -> None:
    # Checked here too, since nothing else chose this interpreter.
    if sys.version_info < (3, 11):  # noqa: UP036
        sys.exit(f"Python 3.11 or newer is needed, this is {sys.version.split()[0]}")
    missing = [name for name in REQUIRED if package(name) is None]
    if missing:
        sys.exit(
            f"it lacks {', '.join(missing)}. Install with\n"
            f"  {sys.executable} -m pip install {' '.join(missing)}\n"
            "or set JAX_W4A8_PYTHON to an interpreter that has them"
        )
    headers = {
        "python": pathlib.Path(sysconfig.get_path("include")),
        "xla_ffi": package("jaxlib") / "include",
        "nanobind": package("nanobind"),
    }
    cutlass = package("cutlass_library")
    if cutlass:
        headers["cutlass"] = cutlass / "source" / "include"
    print(
        json.dumps(
            {
                "headers": {folder: str(path) for folder, path in headers.items()},
                "site_packages": [path for path in sys.path if path.endswith("-packages")],
            }
        )
    )


main()
