"""Every shipped kernel through its FFI handler, all bits of the result equal to the model's."""

from __future__ import annotations

import runpy

import pytest

from tests.sm100.standin import ROOT
from tests.sm100_emulator.cases import BF16, DTYPES, F16, F32, Case
from tests.sm100_emulator.gpu import E4M3, Gpu

TILES = runpy.run_path(str(ROOT / "csrc" / "sources.bzl"))["SM100_TILES"]
DENSE = [tile for tile in TILES if tile.startswith("dense")]
GROUPED = [tile for tile in TILES if tile.startswith("grouped")]
SIZES = (7, 0, 130, 1, 12)


def case(tile: str, **fields) -> Case:
    """A case for a tile of either kind."""
    grouped = {"kind": "grouped", "sizes": SIZES} if tile in GROUPED else {}
    return Case(**{**grouped, **fields})


@pytest.mark.parametrize("out", DTYPES)
@pytest.mark.parametrize("tile", TILES)
def test_every_kernel(gpu: Gpu, tile: str, out: str) -> None:
    case(tile, out=DTYPES[out]).check(gpu, tile)


@pytest.mark.parametrize("tile", TILES)
def test_one_row_and_the_shortest_k(gpu: Gpu, tile: str) -> None:
    sizes = {"sizes": (0, 1, 0)} if tile in GROUPED else {}
    case(tile, m=1, n=1, k=32, **sizes).check(gpu, tile)


@pytest.mark.parametrize("tile", TILES)
def test_k_of_4096(gpu: Gpu, tile: str) -> None:
    sizes = {"sizes": (3, 2)} if tile in GROUPED else {}
    case(tile, m=5, n=40, k=4096, block=0, **sizes).check(gpu, tile)


@pytest.mark.parametrize("tile", TILES)
def test_several_tiles_for_a_thread_block(gpu: Gpu, tile: str) -> None:
    before = gpu.emulator.count("clusters taken over")
    sizes = {"sizes": (200, 0, 310, 5)} if tile in GROUPED else {}
    case(tile, m=530, n=600, k=128, **sizes).check(gpu, tile)
    # Grouped kernels have as many thread blocks as there are SMs, fewer than these tiles.
    if tile in DENSE:
        assert gpu.emulator.count("clusters taken over") > before


@pytest.mark.parametrize("tile", TILES)
def test_extreme_scales_and_nans(gpu: Gpu, tile: str) -> None:
    case(tile, x=E4M3, block=32, out=F32, extreme=True).check(gpu, tile)


@pytest.mark.parametrize("block", [32, 128, 0])
@pytest.mark.parametrize("x", [BF16, F16, F32, E4M3], ids=str)
@pytest.mark.parametrize("tile", ["dense_swap_128x64", "grouped_swap_128x64"])
def test_activations_of_any_type(gpu: Gpu, tile: str, x, block: int) -> None:
    sizes = {"sizes": (9, 0, 8)} if tile in GROUPED else {}
    case(tile, m=19, n=24, k=416, x=x, block=block, **sizes).check(gpu, tile)


GROUPS = {
    "all empty": (0, 0, 0),
    "one has all": (0, 40, 0),
    "rows without a group": (3, 0, 9),
    "more than there are rows": (30, 30, 30),
    "negative": (5, -7, 5),
    "one group": (40,),
    "many": tuple(i % 3 for i in range(70)),
}


@pytest.mark.parametrize("sizes", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("tile", GROUPED)
def test_groups(gpu: Gpu, tile: str, sizes: tuple[int, ...]) -> None:
    Case("grouped", m=40, n=24, k=160, sizes=sizes).check(gpu, tile)


@pytest.mark.parametrize("tile", GROUPED)
def test_masked(gpu: Gpu, tile: str) -> None:
    Case("masked", m=140, n=24, k=160, sizes=(140, 0, 3, 139, 500)).check(gpu, tile)


@pytest.mark.parametrize("kind", ["dense", "grouped", "masked"])
@pytest.mark.parametrize("m", [1, 70, 300])
def test_the_tile_that_the_handler_chooses(gpu: Gpu, kind, m: int) -> None:
    sizes = () if kind == "dense" else (m // 2, m - m // 2)
    Case(kind, m=m, n=256, k=128, sizes=sizes).check(gpu, "")
