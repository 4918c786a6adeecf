"""Checks of arrays that people hand in, each with one clear error."""

from __future__ import annotations

from typing import Any

import numpy as np

FLOATS = ("float32", "bfloat16", "float16")


def as_array(value: Any, name: str, expected: str) -> Any:
    """``value`` itself if it is an array or a tracer, or else as a NumPy array of numbers.

    Raises:
      TypeError: it is no array and cannot be made one; ``expected`` says what it should be.
    """
    if hasattr(value, "dtype"):
        return value
    try:
        array = np.asarray(value)
    except (TypeError, ValueError):
        array = None
    if array is None or array.dtype.kind not in "biufc":
        raise TypeError(f"{name}: expected {expected}, got {type(value).__name__}")
    return array


def float_array(value: Any, name: str, shape: str) -> Any:
    """``value`` as an array of one of the float dtypes that can be quantised.

    Raises:
      TypeError: it is of another dtype, or no array.
    """
    array = as_array(value, name, f"a float array {shape}")
    if array.dtype.name not in FLOATS:
        raise TypeError(
            f"{name}: expected float32, bfloat16 or float16, got {array.dtype}; "
            f"convert it with numpy.asarray({name}, 'float32')"
        )
    return array


def float_dtype(dtype: Any, name: str) -> np.dtype:
    """``dtype`` as one of the float dtypes that a result can have.

    Raises:
      TypeError: it is another one, or no dtype.
    """
    try:
        known = np.dtype(dtype)
    except TypeError:
        raise TypeError(f"{name}: expected float32, bfloat16 or float16, got {dtype!r}") from None
    if known.name not in FLOATS:
        raise TypeError(f"{name}: expected float32, bfloat16 or float16, got {known}")
    return known
