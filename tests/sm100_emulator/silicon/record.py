"""Records on a GPU of compute capability 9.0 what the programs write: ``python -m
tests.sm100_emulator.silicon.record h200.npz``. It needs NumPy and the CUDA driver alone."""

from __future__ import annotations

import ctypes
import multiprocessing
import sys

import numpy as np

from tests.sm100_emulator.silicon.programs import IN_BYTES, OUT_BYTES, PROGRAMS, TYPES, Map, Program

CUDA = ctypes.CDLL("libcuda.so.1")
U64 = ctypes.c_uint64
ILLEGAL_INSTRUCTION = "CUDA error 715"


def check(result: int, what: str) -> None:
    if result != 0:
        raise RuntimeError(f"{what}: CUDA error {result}")


def encode(map: Map, address: int) -> ctypes.Array:
    """The driver's tensor map."""
    raw = (ctypes.c_uint8 * 192)()
    start = -ctypes.addressof(raw) % 64
    rank = len(map.dims)
    arguments = (
        ctypes.c_void_p(ctypes.addressof(raw) + start), TYPES[map.type][0], rank, U64(address),
        (U64 * rank)(*map.dims), (U64 * 4)(*map.strides), (ctypes.c_uint32 * rank)(*map.box),
        (ctypes.c_uint32 * rank)(*[1] * rank), 0, map.swizzle, 0, 0,
    )  # fmt: skip
    check(CUDA.cuTensorMapEncodeTiled(*arguments), f"cuTensorMapEncodeTiled of {map}")
    return (ctypes.c_uint8 * 128)(*raw[start : start + 128])


class Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p), ("attributes", ctypes.c_void_p), ("count", ctypes.c_uint),
    )  # fmt: skip


class Attribute(ctypes.Structure):
    """CUlaunchAttribute of a cluster's dimensions (4)."""

    _fields_ = (
        ("id", ctypes.c_int), ("pad", ctypes.c_int), ("cluster", ctypes.c_uint * 3),
        ("rest", ctypes.c_uint8 * 52),
    )  # fmt: skip


def run(program: Program) -> np.ndarray:
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    log = ctypes.create_string_buffer(4096)
    options, values = (ctypes.c_int * 2)(5, 6), (ctypes.c_void_p * 2)(ctypes.addressof(log), 4096)
    text = program.text.encode() + b"\0"
    result = CUDA.cuModuleLoadDataEx(ctypes.byref(module), text, 2, options, values)
    check(result, f"cuModuleLoadDataEx: {log.value.decode(errors='replace')}")
    check(CUDA.cuModuleGetFunction(ctypes.byref(function), module, b"program"), "function")
    source, target = U64(), U64()
    check(CUDA.cuMemAlloc_v2(ctypes.byref(source), IN_BYTES), "cuMemAlloc")
    check(CUDA.cuMemAlloc_v2(ctypes.byref(target), OUT_BYTES), "cuMemAlloc")
    data, out = program.input(), np.zeros(OUT_BYTES, np.uint8)
    check(CUDA.cuMemcpyHtoD_v2(source, ctypes.c_void_p(data.ctypes.data), IN_BYTES), "copy")
    check(CUDA.cuMemsetD8_v2(target, 0, OUT_BYTES), "memset")
    map = encode(program.map, (target if program.map.of_output else source).value)
    pointers = (ctypes.c_void_p * 3)(*map_addresses(source, target, map))
    attribute = Attribute(4, 0, (program.cluster, 1, 1))
    config = Config(
        (program.cluster, 1, 1),
        (program.threads, 1, 1),
        16384,
        None,
        ctypes.addressof(attribute),
        1,
    )
    check(CUDA.cuLaunchKernelEx(ctypes.byref(config), function, pointers, None), "launch")
    check(CUDA.cuCtxSynchronize(), "running")
    check(CUDA.cuMemcpyDtoH_v2(ctypes.c_void_p(out.ctypes.data), target, OUT_BYTES), "copy")
    return out


def map_addresses(*values: ctypes._SimpleCData | ctypes.Array) -> list[int]:
    return [ctypes.addressof(value) for value in values]


def record(name: str) -> np.ndarray | str:
    """What a program writes, or how it fails."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    check(CUDA.cuInit(0), "cuInit")
    check(CUDA.cuDeviceGet(ctypes.byref(device), 0), "cuDeviceGet")
    check(CUDA.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "context")
    check(CUDA.cuCtxSetCurrent(context), "cuCtxSetCurrent")
    try:
        return run(PROGRAMS[name])
    except RuntimeError as failure:
        return str(failure)


def main(path: str) -> None:
    # A process each: a context does not survive a kernel that fails.
    with multiprocessing.get_context("spawn").Pool(8, maxtasksperchild=1) as pool:
        results = dict(zip(PROGRAMS, pool.map(record, PROGRAMS, chunksize=1), strict=True))
    for name, out in results.items():
        if isinstance(out, str):
            print(f"{name}: {out}")
            if not out.endswith(ILLEGAL_INSTRUCTION):
                raise RuntimeError(out)
            results[name] = np.empty(0, np.uint8)  # the hardware refuses it
    np.savez_compressed(path, **results)


if __name__ == "__main__":
    main(sys.argv[1])
