"""One emulated GPU for all tests of the shipped kernels."""

from __future__ import annotations

import pytest

from tests.sm100_emulator.gpu import Gpu


@pytest.fixture(scope="session")
def gpu() -> Gpu:
    return Gpu()
