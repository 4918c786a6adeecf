"""Every mutant is caught, and by the check that should catch it."""

from __future__ import annotations

import pytest

from tests.sm100_emulator.cases import Case
from tests.sm100_emulator.gpu import Gpu, modules
from tests.sm100_emulator.mutant_list import MUTANTS
from tests.sm100_emulator.mutants import Mutant, count_waits, drop_wait


def test_there_are_enough() -> None:
    assert len(MUTANTS) >= 40


@pytest.mark.parametrize("name", MUTANTS)
def test_mutant(gpu: Gpu, name: str) -> None:
    mutant = MUTANTS[name]
    message = mutant.run(gpu)
    assert message is not None, "not caught"
    assert mutant.caught_by in message


@pytest.mark.parametrize("name", sorted({m.tile: n for n, m in MUTANTS.items()}.values()))
def test_without_its_fault_nothing_is_caught(gpu: Gpu, name: str) -> None:
    mutant = MUTANTS[name]
    mutant.case.check(gpu, mutant.tile)


TILE = "dense_swap_128x64"
LONG = Case(m=70, n=269, k=1536, block=0)
"""Several tiles, and more steps along K than there are stages."""
MOST_UNCAUGHT = 15
"""Of 24 waits: docs/emulator.md says which and why."""


def test_dropped_waits(gpu: Gpu) -> None:
    launched = []
    gpu.change_launch = lambda name, launch: launched.append(name)
    LONG.check(gpu, TILE)
    gpu.change_launch = lambda name, launch: None
    (kernel,) = [name for name in launched if "device_kernel" in name]
    waits = count_waits(modules()[kernel])
    caught = [
        wait
        for wait in range(waits)
        if Mutant("", drop_wait(wait), tile=TILE, case=LONG, seeds=(1, 2)).run(gpu) is not None
    ]
    print(f"{TILE}: {len(caught)} of {waits} dropped waits are caught: {caught}")
    assert waits - len(caught) <= MOST_UNCAUGHT
