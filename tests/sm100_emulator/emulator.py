"""The PTX emulator (``ptx/``) from Python: built once, and loaded with PTX text."""

from __future__ import annotations

import concurrent.futures
import ctypes
import hashlib
import os
import pathlib
import subprocess

import numpy as np

from tests.sm100.standin import ROOT, Launch

SOURCES = pathlib.Path(__file__).parent / "ptx"
FLAGS = ("-std=c++17", "-march=native", "-fPIC", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}")
HOT = ("block_mma.cc", "tcgen05.cc")
"""Where the time goes; the rest is compiled for a quick start."""


class EmulationError(Exception):
    """A kernel did what the PTX ISA does not allow; the message names the PTX line."""


class Emulator:
    """A GPU: modules that were loaded, arrays that kernels may touch."""

    def __init__(self) -> None:
        self._library = library = ctypes.CDLL(str(build()))
        library.emulator_error.restype = ctypes.c_char_p
        library.emulator_create.restype = ctypes.c_void_p
        library.emulator_count.restype = ctypes.c_uint64
        library.emulator_block_mma.restype = ctypes.c_uint32
        self._handle = ctypes.c_void_p(library.emulator_create())

    def __del__(self) -> None:
        self._library.emulator_destroy(self._handle)

    def load(self, text: str) -> None:
        """Adds a PTX module; its kernels take the place of those with the same names."""
        self._check(self._library.emulator_add_module(self._handle, text.encode()))

    def schedule(self, seed: int = 0, resident: int = 1) -> None:
        """How the next launches run.

        Args:
          seed: 0 does asynchronous work at once; anything else delays it at random.
          resident: how many clusters run at the same time.
        """
        self._library.emulator_set_options(self._handle, ctypes.c_uint64(seed), resident)

    def set_arrays(self, defined: list[np.ndarray], undefined: list[np.ndarray]) -> None:
        """What kernels may touch: arrays to read, and arrays to write that nobody wrote yet."""
        self._library.emulator_clear_arrays(self._handle)
        for arrays, is_defined in ((defined, True), (undefined, False)):
            for array in arrays:
                self._library.emulator_add_array(
                    self._handle,
                    ctypes.c_void_p(array.ctypes.data),
                    ctypes.c_uint64(array.nbytes),
                    is_defined,
                    not is_defined,
                )

    def written(self, array: np.ndarray) -> np.ndarray:
        """Which bytes of an array were written, as bool ``[bytes]``."""
        result = np.empty(array.nbytes, np.uint8)
        arguments = [array.ctypes.data, array.nbytes, result.ctypes.data]
        call = self._library.emulator_defined
        self._check(call(self._handle, *map(ctypes.c_void_p, arguments)))
        return result.astype(bool)

    def launch(self, launch: Launch) -> None:
        """Runs a kernel to its end."""
        self._check(self._library.emulator_launch(self._handle, ctypes.byref(launch)))

    def count(self, name: str) -> int:
        """How often an engine did something since the emulator was made."""
        return int(self._library.emulator_count(self._handle, name.encode()))

    def block_mma(self, a: np.ndarray, b: np.ndarray, formats: tuple[int, int],
                  scales: tuple[int, int], accumulator: int) -> int:  # fmt: skip
        """One K = 32 step for a row of A and a column of B: codes uint8 ``[32]`` each."""
        return int(
            self._library.emulator_block_mma(
                a.ctypes.data_as(ctypes.c_void_p), formats[0], ctypes.c_uint8(scales[0]),
                b.ctypes.data_as(ctypes.c_void_p), formats[1], ctypes.c_uint8(scales[1]),
                ctypes.c_uint32(accumulator),
            )
        )  # fmt: skip

    def _check(self, failed: int) -> None:
        if failed:
            raise EmulationError(self._library.emulator_error().decode(errors="replace"))


def build() -> pathlib.Path:
    """Compiles the emulator, unless it was compiled already as it is."""
    files = sorted(SOURCES.glob("*.cc"))
    headers = [*SOURCES.glob("*.h"), ROOT / "tests/sm100/fake_cudart/fake_cudart.h"]
    digest = hashlib.sha256(repr(FLAGS).encode())
    for path in files + sorted(headers):
        digest.update(path.read_bytes())
    # Bazel gives a test a folder of its own to write to.
    scratch = pathlib.Path(os.environ.get("TEST_TMPDIR", ROOT / "build"))
    folder = scratch / "ptx_emulator" / digest.hexdigest()[:16]
    library = folder / "libptx_emulator.so"
    if library.exists():
        return library
    folder.mkdir(parents=True, exist_ok=True)
    compiler = os.environ.get("CXX", "g++")

    def run(*arguments: str) -> None:
        subprocess.run([compiler, *arguments], check=True)

    objects = [str(folder / f"{os.getpid()}_{path.stem}.o") for path in files]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        compiles = [
            pool.submit(run, *FLAGS, "-O3" if f.name in HOT else "-O1", "-c", str(f), "-o", o)
            for f, o in zip(files, objects, strict=True)
        ]
        for done in compiles:
            done.result()
    # Under its name only when it is whole: tests of several processes may build side by side.
    partial = folder / f"{os.getpid()}.so"
    run("-shared", "-o", str(partial), *objects)
    partial.rename(library)
    for path in objects:
        pathlib.Path(path).unlink()
    return library
