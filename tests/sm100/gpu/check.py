"""Checks and times the device code of the SM100 backend that any GPU from SM90 on can run.

    PYTHONPATH=. python tests/sm100/gpu/check.py [--quick | --time]

Needs nvcc, PyTorch with a GPU, and jax (on the CPU, for the right answers). Codes and scales are
compared bit for bit with ``jax_w4a8.activations.quantize_blocks``; every buffer has poisoned
neighbours. ``--quick`` leaves the timing and the large shapes out, for compute-sanitizer;
``--time`` leaves the checks out.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import itertools
import os
import pathlib
import subprocess
import tempfile

os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import torch

from jax_w4a8.activations import quantize_blocks

ROOT = pathlib.Path(__file__).resolve().parents[3]
TYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "float16": np.float16}
BLOCKS = (32, 128, 0)
GUARD = 4096
POISON = 0xA5

reference = jax.jit(quantize_blocks, static_argnums=1)


class Buffer:
    """Device memory of some bytes, between guards that must keep their poison."""

    def __init__(self, content: np.ndarray | int, offset: int = 0):
        data = content if isinstance(content, np.ndarray) else np.full(content, POISON, np.uint8)
        data = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
        self.size, self.start = data.size, GUARD + offset
        whole = np.full(self.start + self.size + GUARD, POISON, np.uint8)
        whole[self.start : self.start + self.size] = data
        self.memory = torch.from_numpy(whole).cuda()

    @property
    def pointer(self) -> ctypes.c_void_p:
        pointer = ctypes.c_void_p(self.memory.data_ptr() + self.start)
        pointer.buffer = self  # keeps the memory while the pointer lives
        return pointer

    def read(self, dtype: type = np.uint8) -> np.ndarray:
        whole = self.memory.cpu().numpy()
        end = self.start + self.size
        assert (whole[: self.start] == POISON).all(), "written in front of the buffer"
        assert (whole[end:] == POISON).all(), "written behind the buffer"
        return whole[self.start : end].copy().view(dtype)


def compile_library() -> ctypes.CDLL:
    major, minor = torch.cuda.get_device_capability()
    path = pathlib.Path(tempfile.mkdtemp(), "library.so")
    source = pathlib.Path(__file__).with_name("library.cu")
    architecture = f"-arch=sm_{major}{minor}"
    command = ["nvcc", "-std=c++17", "-O3", "-lineinfo", "-shared", "-Xcompiler=-fPIC"]
    subprocess.run([*command, architecture, f"-I{ROOT}", source, "-o", path], check=True)
    library = ctypes.CDLL(str(path))
    p, i, q = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64
    library.quantize.argtypes = [p, p, i, q, i, i, p, i, p, i, p]
    library.prepare_groups.argtypes = [p, i, i, i, p, p, p, q]
    library.relayout.argtypes = [p, p, q, i, i, p, p, p]
    return library


def run(status: int) -> None:
    assert status == 0, f"CUDA error {status}"
    torch.cuda.synchronize()


def numbers(rng: np.random.Generator, rows: int, k: int, dtype: type) -> np.ndarray:
    """Numbers of every size, with blocks of zeros, subnormals and what is not finite."""
    x = rng.standard_normal((rows, k)) * 2.0 ** rng.integers(-20, 12, (rows, 1))
    x = x.astype(np.float32).astype(dtype)
    flat = x.reshape(-1)
    for value in (0.0, -0.0, 1e-45, -1e-40, 6e-8, np.inf, -np.inf, np.nan, 448, 449, 1e-38):
        flat[rng.integers(0, flat.size, max(1, flat.size // 2000))] = np.float32(value)
    if rows > 2:
        x[1] = 0
        x[2] = np.float32(-1e-39)
    return x


def every_pattern(dtype: type, k: int) -> np.ndarray:
    """All bit patterns of a 16-bit type in order, as rows of ``k``."""
    return np.arange(1 << 16, dtype=np.uint16).view(dtype).reshape(-1, k)


def swizzle(scales: np.ndarray, to: np.ndarray, units: int, tiles: int, old: np.ndarray):
    """Where each row's scales of 32 belong, written out from the formula alone."""
    result = old.copy()
    kb = np.arange(4 * units)
    for row, target in enumerate(to):
        if target < 0:
            continue
        r = target % 128
        at = (target // 128 * units + kb // 4) * 512 + r % 32 * 16 + r // 32 * 4 + kb % 4
        result[at] = scales[row]
    assert result.size == tiles * units * 512
    return result


def scales_of_32(scales: np.ndarray, block: int, k: int, units: int) -> np.ndarray:
    """One scale for each 32 along K, 1 behind the end of the row."""
    wide = np.full((scales.shape[0], 4 * units), 127, np.uint8)
    for kb in range(4 * units):
        if block == 0 or 32 * kb < k:
            wide[:, kb] = scales[:, 0 if block == 0 else 32 * kb // block]
    # A block of 128 that the row ends in covers what is behind the end too.
    if block == 128:
        wide = np.repeat(scales, 4, axis=1)
    return wide


def check_quantize(library: ctypes.CDLL, x: np.ndarray, block: int, offset: int = 0) -> None:
    rows, k = x.shape
    kind = list(TYPES.values()).index(x.dtype.type)
    codes, scales = (np.asarray(a) for a in reference(jnp.asarray(x), block))
    source = Buffer(x, offset)
    got_codes, got_scales = Buffer(rows * k, offset % 16), Buffer(scales.size)
    run(library.quantize(source.pointer, None, kind, rows, k, block, got_codes.pointer, k,
                         got_scales.pointer, 0, None))  # fmt: skip
    np.testing.assert_array_equal(got_codes.read().reshape(rows, k), codes.view(np.uint8))
    np.testing.assert_array_equal(got_scales.read().reshape(scales.shape), scales)

    # Swizzled, to rows of the scales that are not in order, with some rows left out.
    units, tiles = -(-k // 128), -(-rows // 128) + 1
    to = np.random.default_rng(rows).permutation(tiles * 128)[:rows].astype(np.int32)
    to[::7] = -1
    old = np.full(tiles * units * 512, POISON, np.uint8)
    got_codes, got_scales = Buffer(rows * units * 128), Buffer(old)
    run(library.quantize(source.pointer, None, kind, rows, k, block, got_codes.pointer,
                         units * 128, got_scales.pointer, 1, Buffer(to).pointer))  # fmt: skip
    expected = np.full((rows, units * 128), POISON, np.uint8)
    expected[to >= 0] = 0
    expected[to >= 0, :k] = codes.view(np.uint8)[to >= 0]
    np.testing.assert_array_equal(got_codes.read().reshape(rows, -1), expected)
    wide = scales_of_32(scales, block, k, units)
    np.testing.assert_array_equal(got_scales.read(), swizzle(wide, to, units, tiles, old))


def check_silu_mul(library: ctypes.CDLL, rng: np.random.Generator, dtype: type) -> float:
    """Against float64: scales agree, codes differ by a step where rounding can go either way."""
    rows, k = 64, 1024
    gate, up = (rng.standard_normal((rows, k)).astype(dtype) for _ in range(2))
    g = gate.astype(np.float64)
    product = (g / (1 + np.exp(-g)) * up.astype(np.float64)).astype(np.float32).astype(dtype)
    codes, scales = (np.asarray(a) for a in reference(jnp.asarray(product), 128))
    got_codes, got_scales = Buffer(rows * k), Buffer(scales.size)
    kind = list(TYPES.values()).index(dtype)
    run(library.quantize(Buffer(gate).pointer, Buffer(up).pointer, kind, rows, k, 128,
                         got_codes.pointer, k, got_scales.pointer, 0, None))  # fmt: skip
    np.testing.assert_array_equal(got_scales.read().reshape(scales.shape), scales)
    difference = np.abs(got_codes.read().astype(int) - codes.view(np.uint8).reshape(-1).astype(int))
    assert difference.max() <= 1
    share = float((difference != 0).mean())
    assert share < 0.01
    return share


def check_groups(library: ctypes.CDLL, sizes: np.ndarray, m: int, masked: bool) -> None:
    groups = len(sizes)
    rows = groups * m if masked else m
    first, first_tile, row_of = [], [], np.full(rows, -1, np.int32)
    begin = tile = 0
    used = []
    for e, size in enumerate(sizes):
        size = min(max(int(size), 0), m if masked else m - begin)
        if masked:
            begin, tile = e * m, e * -(-m // 128)
        first.append(begin)
        first_tile.append(tile)
        used.append(size)
        row_of[begin : begin + size] = tile * 128 + np.arange(size)
        if not masked:
            begin += size
            tile += -(-size // 128)
    y_row = 48
    result, rows_out, y = Buffer(12 * groups), Buffer(4 * rows), Buffer(y_row * rows)
    run(library.prepare_groups(Buffer(sizes.astype(np.int32)).pointer, groups, m, masked,
                               result.pointer, rows_out.pointer, y.pointer, y_row))  # fmt: skip
    expected = np.stack([first, used, first_tile], axis=1)
    np.testing.assert_array_equal(result.read(np.int32).reshape(groups, 3), expected)
    np.testing.assert_array_equal(rows_out.read(np.int32), row_of)
    expected_y = np.where(row_of[:, None] < 0, 0, POISON)
    np.testing.assert_array_equal(
        y.read().reshape(rows, y_row), np.broadcast_to(expected_y, (rows, y_row))
    )


def check_relayout(library: ctypes.CDLL, rng: np.random.Generator, rows: int, k: int, block: int):
    blocks = -(-k // block) if block else 1
    codes = rng.integers(0, 256, (rows, k), dtype=np.uint8)
    scales = rng.integers(0, 256, (rows, blocks), dtype=np.uint8)
    units, tiles = -(-k // 128), -(-rows // 128)
    old = np.full(tiles * units * 512, POISON, np.uint8)
    got_codes, got_scales = Buffer(rows * units * 128), Buffer(old)
    run(library.relayout(Buffer(codes).pointer, Buffer(scales).pointer, rows, k, block, None,
                         got_codes.pointer, got_scales.pointer))  # fmt: skip
    expected = np.zeros((rows, units * 128), np.uint8)
    expected[:, :k] = codes
    np.testing.assert_array_equal(got_codes.read().reshape(rows, -1), expected)
    wide = np.full((rows, 4 * units), 127, np.uint8)
    for kb in range(-(-k // 32)):
        wide[:, kb] = scales[:, 32 * kb // block if block else 0]
    np.testing.assert_array_equal(
        got_scales.read(), swizzle(wide, np.arange(rows), units, tiles, old)
    )


def milliseconds(launch, sets: int, repeats: int = 200) -> float:
    """Median time of one launch, over several sets of buffers so that none is left in the cache."""
    for i in range(sets):
        launch(i)
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    events[0].record()
    for i in range(repeats):
        launch(i % sets)
        events[i + 1].record()
    torch.cuda.synchronize()
    return float(np.median([a.elapsed_time(b) for a, b in itertools.pairwise(events)]))


def time_all(library: ctypes.CDLL, rows: int = 4096, k: int = 8192) -> None:
    print(f"{rows} x {k}: time, bytes read and written, share of a copy of as many bytes")
    for kind, name in enumerate(TYPES):
        time_type(library, kind, name, rows, k)


def time_type(library: ctypes.CDLL, kind: int, name: str, rows: int, k: int) -> None:
    sets = 6

    def empty(size: int) -> list[torch.Tensor]:
        return [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(sets)]

    x = [torch.randn(rows, k, device="cuda").to(getattr(torch, name)) for _ in range(sets)]
    codes, scales = empty(rows * k), empty(rows * k // 32)
    moved = rows * k * (x[0].element_size() + 1)
    source, target = empty(moved // 2), empty(moved // 2)
    copy = milliseconds(lambda i: target[i].copy_(source[i]), sets)

    def quantize(i: int, block: int, swizzled: bool) -> None:
        library.quantize(x[i].data_ptr(), None, kind, rows, k, block, codes[i].data_ptr(), k,
                         scales[i].data_ptr(), swizzled, None)  # fmt: skip

    for block, swizzled in itertools.product(BLOCKS, (False, True)):
        time = milliseconds(functools.partial(quantize, block=block, swizzled=swizzled), sets)
        print(
            f"  {name:8} block {block or 'row':>3} {'swizzled' if swizzled else 'plain':8} "
            f"{1e3 * time:6.1f} us  {moved / time / 1e9:5.2f} TB/s  {copy / time:6.1%}"
        )


def check_all(library: ctypes.CDLL, quick: bool) -> None:
    rng = np.random.default_rng(0)
    shapes = [(1, 32), (5, 96), (3, 130), (33, 17), (129, 2880), (3, 20016), (300, 8224)]
    for dtype in TYPES.values():
        for block in BLOCKS:
            for rows, k in shapes[:6] if quick else shapes:
                check_quantize(library, numbers(rng, rows, k, dtype), block)
            check_quantize(
                library, numbers(rng, 9, 256, dtype), block, offset=np.dtype(dtype).itemsize
            )
            if np.dtype(dtype).itemsize == 2 and not quick:
                check_quantize(library, every_pattern(dtype, 128), block)
                mixed = every_pattern(dtype, 128)
                mixed[:, 0] = 2.0 ** rng.integers(-14, 15, len(mixed))
                check_quantize(library, mixed, block)
    print("codes and scales: bit-identical")
    if not quick:
        for dtype in TYPES.values():
            check_quantize(library, numbers(rng, 4096, 8192, dtype), 128)
        print("codes and scales of 4096 x 8192: bit-identical")
    for dtype in TYPES.values():
        share = check_silu_mul(library, rng, dtype)
        print(f"silu * up, {np.dtype(dtype).name}: {share:.3%} of the codes one step off float64")
    for groups, m in [(1, 1), (4, 128), (7, 300), (32, 1000), (1025, 3000), (2500, 700)]:
        sizes = rng.integers(-5, 2 * m // groups + 9, groups)
        check_groups(library, sizes, m, masked=False)
        check_groups(library, np.zeros(groups), m, masked=False)
        check_groups(library, np.full(groups, 2**31 - 1), m, masked=False)
        check_groups(library, rng.integers(-5, 200, min(groups, 40)), min(m, 150), masked=True)
    print("groups: as written out")
    for rows, k in [(1, 32), (130, 2880), (257, 128), (5, 100)]:
        for block in BLOCKS:
            check_relayout(library, rng, rows, k, block)
    print("quantised activations: laid out as written out")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--quick", action="store_true")
    only.add_argument("--time", action="store_true")
    options = parser.parse_args()
    library = compile_library()
    if not options.time:
        check_all(library, options.quick)
    if not options.quick:
        time_all(library)


if __name__ == "__main__":
    main()
