"""What needs the kernels that nvcc compiles is collected where `make cuda` has built them."""

from __future__ import annotations

from typing import Any

from tests.sm100 import standin

try:
    standin.find_library()
    MISSING = ""
except FileNotFoundError as missing:
    MISSING = str(missing)

collect_ignore = ["shipped"] if MISSING else []


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Says which tests were not collected, and why."""
    if MISSING:
        terminalreporter.write_line(f"tests/sm100_emulator/shipped was left out: {MISSING}")
