"""The PTX inside of a library that nvcc built: what it ships, not a second compilation."""

from __future__ import annotations

import ctypes
import pathlib
import struct

_MAGIC = (0xBA55ED50).to_bytes(4, "little")
_PTX = 1
_COMPRESSED_ZSTD = 0x8000


def ptx_modules(path: pathlib.Path) -> list[str]:
    """The text of every PTX module in the fat binaries of a library.

    Args:
      path: a shared library or object.

    Returns:
      One text for each translation unit of the architecture that it was compiled for.
    """
    data = path.read_bytes()
    modules = []
    start = data.find(_MAGIC)
    while start >= 0:
        header, size = struct.unpack_from("<HQ", data, start + 6)
        entry, end = start + header, start + header + size
        while entry < end:
            kind, _, header, size = struct.unpack_from("<HHIQ", data, entry)
            (compressed,) = struct.unpack_from("<I", data, entry + 16)
            (flags,) = struct.unpack_from("<Q", data, entry + 40)
            (length,) = struct.unpack_from("<Q", data, entry + 56)
            payload = data[entry + header : entry + header + (compressed or size)]
            if kind == _PTX:
                text = _decompress(payload, length) if flags & _COMPRESSED_ZSTD else payload
                modules.append(text.rstrip(b"\0").decode())
            entry += header + size
        start = data.find(_MAGIC, max(end, start + 4))
    if not modules:
        raise ValueError(f"{path} has no PTX: it must be built with code=compute_..., too")
    return modules


def _decompress(payload: bytes, length: int) -> bytes:
    """zstd's only caller here; Debian's dpkg needs the same library."""
    zstd = ctypes.CDLL("libzstd.so.1")
    zstd.ZSTD_decompress.restype = ctypes.c_size_t
    zstd.ZSTD_decompress.argtypes = [ctypes.c_char_p, ctypes.c_size_t] * 2
    text = ctypes.create_string_buffer(length)
    written = zstd.ZSTD_decompress(text, length, payload, len(payload))
    if written != length:
        raise ValueError("PTX in a fat binary does not decompress to its length")
    return text.raw
