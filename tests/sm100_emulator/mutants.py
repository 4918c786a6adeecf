"""Faults put into the shipped kernels' PTX, into what the host hands over, and into packing."""

from __future__ import annotations

import ctypes
import dataclasses
import re
import struct
from collections.abc import Callable

import numpy as np

from tests.sm100.standin import Launch
from tests.sm100_emulator.cases import Case
from tests.sm100_emulator.gpu import Gpu, Operands

TENSOR_MAP_MAGIC = 0x7E45A9B1
TENSOR_MAP_OFFSETS = {"type": 4, "swizzle": 7, "box": 16, "dims": 28, "address": 48, "strides": 56}
"""Of the fields of FakeTensorMap in fake_cudart.h."""

Text = Callable[[str], str]
SMALL = Case(m=70, n=269, k=200, block=32)


@dataclasses.dataclass(frozen=True)
class Mutant:
    """One fault, and what shows it.

    ``caught_by`` is a part of the message: of the emulator's error, or "numbers differ" where the
    result is compared with the model.
    """

    caught_by: str
    text: Text | None = None
    kernel: str = "device_kernel"
    """Part of the names of the kernels that ``text`` changes."""
    launch: Callable[[Launch], None] | None = None
    operands: Callable[[Operands], Operands] | None = None
    seeds: tuple[int, ...] = (0,)
    """Schedules to try; a missing wait shows only in those that are adverse."""
    tile: str = "dense_swap_128x64"
    case: Case = SMALL

    def run(self, gpu: Gpu) -> str | None:
        """The message that shows the fault, or None if no schedule does."""
        if self.text is not None:
            text, kernel = self.text, self.kernel
            gpu.change_text = lambda name, ptx: text(ptx) if kernel in name else ptx
        if self.launch is not None:
            launch = self.launch
            gpu.change_launch = lambda name, it: launch(it) if "device_kernel" in name else None
        try:
            for seed in self.seeds:
                try:
                    self.case.check(gpu, self.tile, seed, self.operands)
                except Exception as caught:
                    return str(caught)
            return None
        finally:
            gpu.change_text = lambda name, text: text
            gpu.change_launch = lambda name, launch: None


def replace(pattern: str, replacement: str, which: int | None = None) -> Text:
    """Replaces the matches of a pattern, or the one with that index; there must be one."""

    def change(text: str) -> str:
        matches = list(re.finditer(pattern, text))
        if which is not None:
            matches = matches[which : which + 1] if which >= 0 else matches[which:][:1]
        if not matches:
            raise LookupError(f"nothing matches {pattern!r}: the mutant changes nothing")
        for match in reversed(matches):
            text = text[: match.start()] + match.expand(replacement) + text[match.end() :]
        return text

    return change


def drop(pattern: str, which: int | None = None) -> Text:
    """Removes instructions that begin like the pattern."""
    return replace(rf"{pattern}[^;]*;", "", which)


MMA = r"tcgen05\.mma\.(\S+) (\[%r\d+\]), (%rd\d+), (%rd\d+), (%r\d+), (\[%r\d+\]), (\[%r\d+\]), p;"


def descriptor(bits: int, which: int | None = None) -> Text:
    """Flips bits of the MMA's instruction descriptor."""
    changed = rf".reg .b32 flipped; xor.b32 flipped, \5, {bits}; "
    return replace(MMA, changed + r"tcgen05.mma.\1 \2, \3, \4, flipped, \6, \7, p;", which)


def drop_wait(which: int) -> Text:
    """Goes on without waiting at one of the kernel's blocking waits for an mbarrier."""
    return replace(r"(LAB_WAIT:\s*mbarrier\.try_wait[^;]*;\s*)@P1 bra DONE", r"\1bra DONE", which)


def count_waits(text: str) -> int:
    """Of those that `drop_wait` counts."""
    return len(re.findall(r"LAB_WAIT:\s*mbarrier\.try_wait[^;]*;\s*@P1 bra DONE", text))


def change_map(which: int, field: str, change: Callable[[int], int], index: int = 0):
    """Changes a field of the tensor map with that index among a kernel's parameters."""

    def run(launch: Launch) -> None:
        start = launch.arguments[0]
        # CUTLASS's parameters are one structure of a few KiB; maps lie at multiples of 64 bytes.
        raw = (ctypes.c_uint8 * 2560).from_address(start)
        maps = [i for i in range(0, 2560, 64) if bytes(raw[i : i + 4]) == MAGIC]
        code = {"type": "B", "swizzle": "B", "box": "H", "dims": "I"}.get(field, "Q")
        at = maps[which] + TENSOR_MAP_OFFSETS[field] + index * struct.calcsize(code)
        (value,) = struct.unpack_from(code, raw, at)
        struct.pack_into(code, raw, at, change(value))

    return run


MAGIC = TENSOR_MAP_MAGIC.to_bytes(4, "little")


def on(field: str, change: Callable[[np.ndarray], np.ndarray]):
    """Changes one of the operands."""
    return lambda operands: dataclasses.replace(
        operands, **{field: change(getattr(operands, field))}
    )


def swap_nibbles(codes: np.ndarray) -> np.ndarray:
    return codes >> 4 | codes << 4


def plain_scales(scales: np.ndarray) -> np.ndarray:
    """Tiles whose rows follow one another instead of being interleaved by 32."""
    tiles = scales.reshape(-1, 32, 4, 4)
    return np.ascontiguousarray(tiles.swapaxes(1, 2)).reshape(scales.shape)


def reverse_blocks(scales: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(scales.reshape(-1, 4)[:, ::-1]).reshape(scales.shape)
