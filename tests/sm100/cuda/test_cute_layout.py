"""The layouts that the kernels are given, against CuTe's own layout functions run on the host."""

from __future__ import annotations

import ctypes
import importlib.util
import pathlib
import subprocess

import jax.numpy as jnp
import numpy as np
import pytest

from jax_w4a8.backends.sm100 import swizzle_scales

ROOT = pathlib.Path(__file__).resolve().parents[3]
SHAPES = 1000


@pytest.fixture(scope="module")
def cute(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    spec = importlib.util.find_spec("cutlass_library")
    assert spec is not None
    assert spec.origin is not None
    headers = pathlib.Path(spec.origin).parent / "source"
    path = tmp_path_factory.mktemp("cute") / "cute_layout.so"
    includes = [f"-I{ROOT}", f"-I{headers}/include", f"-I{headers}/tools/util/include"]
    source = pathlib.Path(__file__).with_name("cute_layout.cu")
    command = ["nvcc", "-std=c++17", "-arch=sm_90", "-shared", "-Xcompiler=-fPIC"]
    flags = ["--expt-relaxed-constexpr", "-diag-suppress=20012"]
    subprocess.run([*command, *flags, *includes, source, "-o", path], check=True)
    library = ctypes.CDLL(str(path))
    library.own_scale_bytes.restype = library.own_scale_offset.restype = ctypes.c_int64
    library.own_scale_bytes.argtypes = [ctypes.c_int64, ctypes.c_int64]
    library.own_scale_offset.argtypes = [ctypes.c_int64, ctypes.c_int, ctypes.c_int]
    return library


def shapes(seed: int, count: int = SHAPES) -> list[tuple[int, int, int]]:
    """Shapes [m, n, k] with k a multiple of 128, from one row to several thousand."""
    rng = np.random.default_rng(seed)
    m, n = (2 ** rng.uniform(0, 13, (2, count))).astype(int)
    return list(zip(m.tolist(), n.tolist(), (128 * rng.integers(1, 65, count)).tolist()))  # noqa: B905


def offsets(cute: ctypes.CDLL, shape: tuple[int, int, int], row: int, k0: int) -> tuple[int, int]:
    found = (ctypes.c_int64 * 2)()
    cute.scale_offsets(*shape, row, k0, found)
    return found[0], found[1]


def test_scales_lie_where_cute_puts_them(cute: ctypes.CDLL) -> None:
    rng = np.random.default_rng(0)
    for m, n, k in shapes(1):
        for _ in range(20):
            k0 = int(rng.integers(k))
            for operand, rows in enumerate((m, n)):
                row = int(rng.integers(rows))
                expected = offsets(cute, (m, n, k), row, k0)[operand]
                assert cute.own_scale_offset(row, k0, k) == expected
                # As docs/sm100.md writes it.
                kb, units = k0 // 32, k // 128
                tile = row // 128 * units + kb // 4
                assert tile * 512 + row % 32 * 16 + row % 128 // 32 * 4 + kb % 4 == expected


def test_scales_take_the_bytes_that_cute_says(cute: ctypes.CDLL) -> None:
    found = (ctypes.c_int64 * 2)()
    for m, n, k in shapes(2):
        cute.scale_sizes(m, n, k, found)
        assert [cute.own_scale_bytes(rows, k) for rows in (m, n)] == list(found)


def test_packed_scales_are_read_back_by_cute(cute: ctypes.CDLL) -> None:
    rng = np.random.default_rng(3)
    for m, n, k in shapes(4, 30):
        rows = min(n, 700)
        scales = rng.integers(0, 255, (rows, k // 32), dtype=np.uint8)
        packed = np.asarray(swizzle_scales(jnp.asarray(scales))).reshape(-1)
        assert packed.size == cute.own_scale_bytes(rows, k)
        for _ in range(200):
            row, kb = int(rng.integers(rows)), int(rng.integers(k // 32))
            at = offsets(cute, (m, rows, k), row, 32 * kb)[1]
            assert packed[at] == scales[row, kb]


def test_operands_are_packed_row_by_row(cute: ctypes.CDLL) -> None:
    found = (ctypes.c_int64 * 3)()
    for m, n, k in shapes(5):
        for rows, columns in ((m, k), (n, k), (m, n)):
            cute.row_major_strides(rows, columns, found)
            assert list(found)[:2] == [columns, 1]
