"""The SM100 backend on a GPU that is emulated: its handlers, the stand-in runtime, its PTX."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable

import ml_dtypes
import numpy as np

from jax_w4a8.backends.sm100 import workspace_bytes
from jax_w4a8.product import Product
from tests.sm100.standin import Launch, Standin, aligned, find_library
from tests.sm100_emulator.emulator import Emulator
from tests.sm100_emulator.fatbin import ptx_modules

E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
DEVICE, SM_COUNT = 0, 3
"""Few SMs, so that thread blocks get several tiles."""


@dataclasses.dataclass
class Operands:
    """What a product's custom call gets, as docs/backends.md and docs/sm100.md lay it out."""

    x: tuple[np.ndarray, ...]
    """Floats ``[.., K]``, or E4M3 codes and their scales."""
    codes: np.ndarray
    scales: np.ndarray
    sizes: np.ndarray | None = None


class Gpu:
    """Runs custom calls of the SM100 backend, every kernel of theirs in the emulator."""

    def __init__(self) -> None:
        self.standin = Standin(find_library())
        self.standin.set_device(DEVICE, 10, 0, SM_COUNT)
        self.emulator = Emulator()
        self._loaded: dict[str, str] = {}
        self._failure: Exception | None = None
        self.change_text: Callable[[str, str], str] = lambda name, text: text
        """A kernel's name and its PTX -> the PTX to run instead: for mutants."""
        self.change_launch: Callable[[str, Launch], None] = lambda name, launch: None
        """Called before each launch: may change what its arguments point to."""

    def run(self, product: Product, operands: Operands, tile: str = "", seed: int = 0,
            resident: int = 2) -> np.ndarray:  # fmt: skip
        """The result of a product's custom call, ``[.., round_up(n, 8)]``.

        Raises:
          EmulationError: a kernel did something wrong.
          RuntimeError: the handler refused the call.
        """
        columns = -(-product.n // 8) * 8
        y = aligned((*product.out_shape[:-1], columns), product.out_dtype)
        y.view(np.uint8)[...] = 0xFF
        workspace = aligned((workspace_bytes(product),), np.uint8)
        workspace[...] = 0xFF
        inputs = [_copy(array) for array in (*operands.x, *_optional(operands.sizes))]
        inputs += [_copy(operands.codes), _copy(operands.scales)]
        attributes = {"n": product.n, "k": product.k, "block": product.block, "tile": tile}
        self.call(f"jax_w4a8_sm100_{product.kind}_v1", inputs, [y, workspace], attributes,
                  seed, resident)  # fmt: skip
        unwritten = np.count_nonzero(~self.emulator.written(y)) if y.size else 0
        if unwritten:
            raise AssertionError(f"{unwritten} bytes of the result were never written")
        return y

    def call(
        self,
        target: str,
        inputs: list[np.ndarray],
        results: list[np.ndarray],
        attributes: dict[str, int | str],
        seed: int = 0,
        resident: int = 2,
    ) -> None:
        """Calls a target's handler with arrays in device memory."""
        self.emulator.set_arrays(inputs, results)
        self.emulator.schedule(seed, resident)
        self._failure = None
        self.standin.on_launch(self._launch)
        message = self.standin.call(target, inputs, results, attributes, DEVICE)
        self.standin.on_launch(None)
        if self._failure is not None:
            raise self._failure
        if message is not None:
            raise RuntimeError(message)

    def _launch(self, launch: Launch) -> int:
        try:
            name = launch.kernel.decode()
            text = self.change_text(name, modules()[name])
            if self._loaded.get(name) != text:
                self.emulator.load(text)
                self._loaded |= dict.fromkeys(_kernels(text), text)
            self.change_launch(name, launch)
            self.emulator.launch(launch)
            return 0
        except Exception as failure:  # must not pass through C++
            self._failure = failure
            return 1


@functools.cache
def modules() -> dict[str, str]:
    """The PTX module of every kernel in the stand-in library."""
    result: dict[str, str] = {}
    for text in ptx_modules(find_library()):
        result |= dict.fromkeys(_kernels(text), text)
    return result


def _kernels(text: str) -> list[str]:
    return re.findall(r"\.entry\s+([\w$]+)", text)


def _copy(array: np.ndarray) -> np.ndarray:
    copy = aligned(array.shape, array.dtype)
    copy[...] = array
    return copy


def _optional(array: np.ndarray | None) -> tuple[np.ndarray, ...]:
    return () if array is None else (array,)
