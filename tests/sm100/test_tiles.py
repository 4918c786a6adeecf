"""The choice of a tile, and the scratch that JAX allocates: the C++ of csrc/sm100, without CUDA."""

from __future__ import annotations

import ctypes
import pathlib
import subprocess
from typing import Any

import numpy as np
import pytest

from jax_w4a8.backends.sm100 import workspace_bytes
from jax_w4a8.product import Product

ROOT = pathlib.Path(__file__).resolve().parents[2]
B200 = 148
FLOAT = np.dtype("float32")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    path = tmp_path_factory.mktemp("tiles") / "tiles.so"
    sources = [ROOT / "tests/sm100/tiles.cc", ROOT / "csrc/sm100/choose_tile.cc"]
    command = ["g++", "-std=c++17", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", f"-I{ROOT}"]
    subprocess.run([*command, *sources, "-o", path], check=True)
    library = ctypes.CDLL(str(path))
    size, number = ctypes.c_int64, ctypes.c_int
    library.tile_name.restype = library.choose.restype = ctypes.c_char_p
    library.choose.argtypes = [size, size, size, size, number, number]
    library.clocks.argtypes = [number, size, size, size, size, number]
    library.workspace.argtypes = [size, size, size, number]
    library.clocks.restype = library.workspace.restype = size
    return library


def choose(library: Any, m: int, n: int, k: int, groups: int = 0, sms: int = B200) -> str:
    return library.choose(m, n, k, max(groups, 1), groups > 0, sms).decode()


@pytest.mark.parametrize(
    ("m", "n", "k", "tile"),
    [
        (1, 4096, 4096, "dense_swap_128x64"),
        (16, 16384, 16384, "dense_swap_128x64"),
        (64, 16384, 16384, "dense_swap_128x64"),
        # Two columns of tiles of 64 rows would take two waves.
        (128, 16384, 16384, "dense_swap_128x128"),
        (8192, 8192, 8192, "dense_256x256"),
        (16384, 16384, 4096, "dense_256x256"),
        # 32 tiles of 256 x 256 leave most of the GPU idle.
        (1024, 2048, 4096, "dense_swap_128x128"),
    ],
)
def test_dense_products_take_the_tile_that_fits(library, m, n, k, tile) -> None:
    assert choose(library, m, n, k) == tile


@pytest.mark.parametrize(
    ("m", "tile"),
    [(1, "grouped_swap_128x64"), (64, "grouped_swap_128x64"), (512, "grouped_128x128")],
)
def test_grouped_products_take_grouped_tiles(library, m, tile) -> None:
    assert choose(library, m, 4096, 4096, groups=32) == tile


def test_the_tile_chosen_is_one_of_the_fastest(library) -> None:
    names = [library.tile_name(i).decode() for i in range(library.tile_count())]
    rng = np.random.default_rng(0)
    for _ in range(500):
        m, n, k = (int(2 ** rng.uniform(low, 15)) for low in (0, 3, 5))
        sms = int(rng.choice([80, 132, 148, 160]))
        for groups in (0, int(rng.integers(1, 200))):
            kind = "grouped" if groups else "dense"
            time = {
                name: library.clocks(i, m, n, k, max(groups, 1), sms)
                for i, name in enumerate(names)
                if name.startswith(kind)
            }
            assert time[choose(library, m, n, k, groups, sms)] == min(time.values())


def test_more_of_anything_never_takes_less_time(library) -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        m, n, k = (int(2 ** rng.uniform(low, 13)) for low in (0, 3, 5))
        for tile in range(library.tile_count()):
            base = library.clocks(tile, m, n, k, 4, B200)
            assert library.clocks(tile, 2 * m, n, k, 4, B200) >= base
            assert library.clocks(tile, m, 2 * n, k, 4, B200) >= base
            assert library.clocks(tile, m, n, 2 * k, 4, B200) >= base
            assert library.clocks(tile, m, n, k, 8, B200) >= base
            assert library.clocks(tile, m, n, k, 4, B200 // 2) >= base


def test_the_clocks_of_one_full_wave_are_those_of_the_tensor_core(library) -> None:
    names = [library.tile_name(i).decode() for i in range(library.tile_count())]
    tile = names.index("dense_256x256")
    # 74 tiles, one for each pair of SMs, of 128 steps: 256 * 256 * 128 multiplications at 2 * 8192
    # a clock are 512 clocks a step.
    assert library.clocks(tile, 256, 256 * 74, 128 * 128, 1, B200) == 512 * 128 + 2000


def test_the_scratch_is_as_large_as_the_handlers_expect(library) -> None:
    rng = np.random.default_rng(2)
    for _ in range(500):
        m, k, groups = (
            int(rng.integers(low, high)) for low, high in ((0, 3000), (1, 5000), (1, 300))
        )
        padded = -(-k // 128) * 128
        for kind in ("dense", "grouped", "masked"):
            count = 1 if kind == "dense" else groups
            product = Product(kind, m, 8, k, count, 128, "sm100", FLOAT, FLOAT)
            expected = library.workspace(
                m, padded, 0 if kind == "dense" else groups, kind == "masked"
            )
            assert workspace_bytes(product) == expected
