"""The machine code of the kernels that were built."""

from __future__ import annotations

import pytest

from jax_w4a8 import _sm100
from tools import kernel_table


@pytest.fixture(scope="module")
def rows() -> list[kernel_table.Row]:
    return kernel_table.rows_of(_sm100, {})


def test_every_kernel_multiplies_with_block_scales_and_loads_with_tma(rows) -> None:
    assert len(rows) == 21
    assert [fault for row in rows for fault in row.faults()] == []


def test_every_kernel_fits_its_registers_and_shared_memory(rows) -> None:
    for row in rows:
        assert row.spills == 0
        assert row.registers <= 255
        # What a thread block may have on compute capability 10.
        assert row.shared_bytes <= 227 * 1024
        assert row.stages >= 3
