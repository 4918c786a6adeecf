"""The SM100 backend's handlers linked against a stand-in for the CUDA runtime, from Python.

``fake_cudart/fake_cudart.h`` says what the stand-in does. The library is what CMake builds beside
the extension, of the same objects.
"""

from __future__ import annotations

import ctypes
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIBRARY = "libsm100_standin.so"

TYPES = {
    "uint8": 6,
    "int32": 4,
    "float16": 10,
    "float32": 11,
    "bfloat16": 16,
    "float8_e4m3fn": 20,
}
"""XLA_FFI_DataType of NumPy's dtypes."""


class _Buffer(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("dims", ctypes.c_int64 * 4),
        ("data", ctypes.c_void_p),
    )


class _Attribute(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("text", ctypes.c_char_p),
        ("number", ctypes.c_int64),
    )


class Launch(ctypes.Structure):
    """One recorded launch: ``FakeLaunch`` of fake_cudart.h."""

    _fields_ = (
        ("kernel", ctypes.c_char_p),
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("cluster", ctypes.c_uint32 * 3),
        ("shared_bytes", ctypes.c_uint32),
        ("arguments", ctypes.POINTER(ctypes.c_void_p)),
        ("stream", ctypes.c_void_p),
    )


_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Launch))


class Standin:
    """The handlers, and the devices and launches that the stand-in pretends."""

    def __init__(self, path: pathlib.Path | None = None):
        self._library = library = ctypes.CDLL(str(path or find_library()))
        library.fake_xla_call.restype = ctypes.c_char_p
        library.fake_xla_call.argtypes = [ctypes.c_char_p, ctypes.c_int] + 3 * [
            ctypes.c_void_p,
            ctypes.c_int,
        ]
        library.fake_cudart_launched_kernel.restype = ctypes.c_char_p
        library.fake_xla_command_buffer_compatible.restype = ctypes.c_bool
        library.fake_xla_command_buffer_compatible.argtypes = [ctypes.c_char_p]
        self._callback = None

    def set_device(self, ordinal: int, major: int, minor: int, sm_count: int) -> None:
        """Gives the machine a device; handlers read each ordinal's properties once."""
        self._library.fake_cudart_set_device(ordinal, major, minor, sm_count)

    def on_launch(self, run: Callable[[Launch], int] | None) -> None:
        """Has ``run`` called for every launch; what it returns but 0 makes the launch fail."""
        self._callback = _Callback((lambda launch: run(launch.contents)) if run else 0)
        self._library.fake_cudart_set_callback(self._callback)

    def call(
        self,
        target: str,
        arguments: Sequence[np.ndarray],
        results: Sequence[np.ndarray],
        attributes: dict[str, int | str],
        device: int = 0,
    ) -> str | None:
        """Calls a target's handler; None, or its error."""
        packed = [_Attribute(k.encode(), *_value(v)) for k, v in attributes.items()]
        groups: list[Any] = []
        for cls, values in (
            (_Buffer, [_buffer(a) for a in arguments]),
            (_Buffer, [_buffer(a) for a in results]),
            (_Attribute, packed),
        ):
            groups += [(cls * len(values))(*values), len(values)]
        message = self._library.fake_xla_call(target.encode(), device, *groups)
        return None if message is None else message.decode()

    def command_buffer_compatible(self, target: str) -> bool:
        """Whether the handler says that it may be captured in a command buffer."""
        return bool(self._library.fake_xla_command_buffer_compatible(target.encode()))

    def reset(self) -> None:
        """Forgets the launches so far."""
        self._library.fake_cudart_reset()

    def launched(self) -> list[str]:
        """Mangled names of the kernels launched since the last reset."""
        count = self._library.fake_cudart_launches()
        return [self._library.fake_cudart_launched_kernel(i).decode() for i in range(count)]

    def refused_tensor_maps(self) -> int:
        """Tensor maps that the driver would have refused since the last reset."""
        return int(self._library.fake_cudart_refused_tensor_maps())


def find_library() -> pathlib.Path:
    """The newest stand-in under build/."""
    found = sorted(ROOT.glob(f"build/*/{LIBRARY}"), key=lambda path: path.stat().st_mtime)
    if not found:
        raise FileNotFoundError(f"build/*/{LIBRARY}: `make cuda` builds it beside the extension")
    return found[-1]


def aligned(shape: Sequence[int], dtype: Any, offset: int = 0) -> np.ndarray:
    """Zeros at an address that is ``offset`` bytes past a multiple of 256."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.zeros(size + 512 + offset, np.uint8)
    start = -raw.ctypes.data % 256 + offset
    return raw[start : start + size].view(dtype).reshape(shape)


def _value(value: int | str) -> tuple[bytes | None, int]:
    return (value.encode(), 0) if isinstance(value, str) else (None, value)


def _buffer(array: np.ndarray) -> _Buffer:
    dims = (ctypes.c_int64 * 4)(*array.shape)
    return _Buffer(TYPES[array.dtype.name], array.ndim, dims, array.ctypes.data)
