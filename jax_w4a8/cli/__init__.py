"""The commands of ``python -m jax_w4a8``, each a module of this package with ``main(argv)``."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

COMMANDS = {
    "info": "which backends serve on this machine, and why the others do not",
    "bench": "products of this machine's backends and of XLA, timed in one run",
    "selftest": "every backend that serves here against float64",
}


def main(argv: Sequence[str]) -> int:
    """Runs the command that ``argv`` names; returns the exit status."""
    if argv and argv[0] in COMMANDS:
        return importlib.import_module(f"jax_w4a8.cli.{argv[0]}").main(argv[1:])
    usage = "usage: python -m jax_w4a8 COMMAND [--help]\n\n" + "\n".join(
        f"  {name:10} {what}" for name, what in COMMANDS.items()
    )
    if not argv or argv[0] in ("-h", "--help"):
        print(usage)
        return 0
    print(f"unknown command {argv[0]!r}\n\n{usage}")
    return 2
