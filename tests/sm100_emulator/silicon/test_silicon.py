"""The emulator against what an H200 computed: the recorded bits, replayed."""

from __future__ import annotations

import ctypes
import pathlib

import numpy as np
import pytest

from tests.sm100.standin import Launch, aligned
from tests.sm100_emulator.emulator import EmulationError, Emulator
from tests.sm100_emulator.silicon.programs import (
    IN_BYTES,
    OUT_BYTES,
    PROGRAMS,
    TYPES,
    Map,
    Program,
)

RECORDED = np.load(pathlib.Path(__file__).parent / "h200.npz")


class FakeTensorMap(ctypes.Structure):
    """Of fake_cudart.h."""

    _fields_ = (
        ("magic", ctypes.c_uint32), ("type", ctypes.c_uint8), ("rank", ctypes.c_uint8),
        ("interleave", ctypes.c_uint8), ("swizzle", ctypes.c_uint8), ("l2", ctypes.c_uint8),
        ("fill", ctypes.c_uint8), ("element_strides", ctypes.c_uint8 * 5),
        ("box", ctypes.c_uint16 * 5), ("dims", ctypes.c_uint32 * 5), ("address", ctypes.c_uint64),
        ("strides", ctypes.c_uint64 * 4), ("rest", ctypes.c_uint8 * 40),
    )  # fmt: skip


def encode(map: Map, address: int) -> FakeTensorMap:
    return FakeTensorMap(
        0x7E45A9B1, TYPES[map.type][0], len(map.dims), 0, map.swizzle, 0, 0,
        (1,) * 5, map.box, map.dims, address, map.strides,
    )  # fmt: skip


def run(program: Program, seed: int) -> np.ndarray:
    emulator = Emulator()
    emulator.load(program.text)
    emulator.schedule(seed)
    given, out = aligned((IN_BYTES,), np.uint8), aligned((OUT_BYTES,), np.uint8)
    given[:] = program.input()
    emulator.set_arrays([given], [out])
    map = encode(program.map, (out if program.map.of_output else given).ctypes.data)
    values = (ctypes.c_uint64(given.ctypes.data), ctypes.c_uint64(out.ctypes.data), map)
    pointers = (ctypes.c_void_p * 3)(*[ctypes.addressof(value) for value in values])
    size = (program.cluster, 1, 1)
    emulator.launch(Launch(b"program", size, (program.threads, 1, 1), size, 16384, pointers))
    return out


def test_there_are_enough() -> None:
    assert sum(RECORDED[name].size > 0 for name in RECORDED.files) >= 30
    assert set(RECORDED.files) == set(PROGRAMS)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", PROGRAMS)
def test_same_bits_as_an_h200(name: str, seed: int) -> None:
    if RECORDED[name].size == 0:  # the hardware takes it for an illegal instruction
        with pytest.raises(EmulationError, match="coordinate"):
            run(PROGRAMS[name], seed)
        return
    np.testing.assert_array_equal(run(PROGRAMS[name], seed), RECORDED[name])
