"""Adverse schedules: asynchronous work is delayed at random, warps run in any order."""

from __future__ import annotations

import pytest

from tests.sm100_emulator.cases import Case
from tests.sm100_emulator.gpu import Gpu

CASES = {
    "dense_128x128": Case(m=140, n=269, k=416),
    "dense_256x256": Case(m=300, n=269, k=416),
    "dense_swap_128x64": Case(m=70, n=269, k=1536),
    "grouped_128x128": Case("grouped", m=300, n=269, k=416, sizes=(140, 0, 31, 129)),
    "grouped_swap_128x64": Case("grouped", m=90, n=136, k=1536, sizes=(20, 0, 40, 17)),
}


@pytest.mark.parametrize("seed", range(1, 21))
@pytest.mark.parametrize("tile", CASES)
def test_no_schedule_changes_a_bit(gpu: Gpu, tile: str, seed: int) -> None:
    CASES[tile].check(gpu, tile, seed, resident=1 + seed % 4)
