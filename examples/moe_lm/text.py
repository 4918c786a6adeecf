"""Bytes of text that ships with Python: the sources of its standard library."""

from __future__ import annotations

import pathlib
import sysconfig

import numpy as np

HELD_OUT = 10
"""One file in so many is held out."""

SKIPPED = ("site-packages", "dist-packages", "test", "idlelib", "lib2to3")


def load(limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Training and held-out bytes, uint8, together at most ``limit``, from different files."""
    folder = pathlib.Path(sysconfig.get_paths()["stdlib"])
    parts: tuple[list[bytes], list[bytes]] = ([], [])
    size = 0
    for index, path in enumerate(sorted(folder.glob("*.py")) + sorted(folder.glob("[a-z]*/*.py"))):
        if path.parent.name in SKIPPED or size > limit:
            continue
        source = path.read_bytes()
        parts[index % HELD_OUT == 0].append(source)
        size += len(source)
    if not all(parts):
        raise FileNotFoundError(f"expected the sources of the standard library in {folder}")
    train, held_out = (np.frombuffer(b"".join(p), np.uint8) for p in parts)
    return train, held_out


def windows(text: np.ndarray, length: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """``[count, length + 1]`` stretches of ``text`` at random places."""
    starts = rng.integers(0, len(text) - length - 1, count)
    return text[starts[:, None] + np.arange(length + 1)]
