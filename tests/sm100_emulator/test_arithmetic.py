"""The emulator's arithmetic of a block against the model's, and both against worked examples."""

from __future__ import annotations

import numpy as np
import pytest

from jax_w4a8.cli import tensor_core as model
from tests.sm100_emulator.emulator import Emulator

E4M3, E2M1 = 0, 5
ONE, MINUS_ONE, LEAST = 0x38, 0xB8, 0x01  # E4M3: 1, -1, 2^-9
SIX, HALF, W_ONE = 7, 1, 2  # E2M1


@pytest.fixture(scope="module")
def emulator() -> Emulator:
    return Emulator()


def by_model(x, w, x_scale, w_scale, accumulator: int) -> int:
    if np.any((x & 0x7F) == 0x7F) or 255 in (x_scale, w_scale):
        return 0x7FFFFFFF
    values = model.E4M3_VALUES[x], model.E2M1_VALUES[w]
    shifts = x_scale - 127, w_scale - 127
    a, b = (np.ldexp(v, s)[None] for v, s in zip(values, shifts, strict=True))
    ea = model.exponents(values[0], model.E4M3_LEAST)[None] + shifts[0]
    eb = model.exponents(values[1], model.E2M1_LEAST)[None] + shifts[1]
    before = np.array([[accumulator]], np.uint32).view(np.float32)
    return int(model.accumulate_block(a, b, ea, eb, before).view(np.uint32)[0, 0])


@pytest.mark.parametrize("spread", [0, 3, 120])
def test_random_blocks(emulator: Emulator, spread: int) -> None:
    rng = np.random.default_rng(spread)
    finite = np.array([c for c in range(256) if c & 0x7F != 0x7F], np.uint8)
    for _ in range(2000):
        x, w = rng.choice(finite, 32), rng.integers(0, 16, 32, dtype=np.uint8)
        x[rng.random(32) < rng.random()] = 0
        scales = rng.integers(127 - spread, 128 + spread, 2)
        accumulator = np.float32(rng.normal() * 2.0 ** rng.integers(-30, 30))
        bits = int(accumulator.view(np.uint32)) if rng.random() < 0.8 else 0
        ours = emulator.block_mma(x, w, (E4M3, E2M1), tuple(scales), bits)
        swapped = emulator.block_mma(w, x, (E2M1, E4M3), tuple(scales[::-1]), bits)
        assert ours == swapped == by_model(x, w, *scales, bits)


def block(*codes: int) -> np.ndarray:
    return np.array(codes + (0,) * (32 - len(codes)), np.uint8)


F32 = {1.0: 0x3F800000, 3.0: 0x40400000, 2.0**-24: 0x33800000}
EXAMPLES = {
    # x, w, scales of x and w, accumulator -> result
    "one by six": (block(ONE), block(SIX), 127, 127, 0, 0x40C00000),
    "scales multiply": (block(ONE), block(W_ONE), 128, 125, 0, 0x3F000000),
    "nothing": (block(), block(), 127, 127, 0, 0),
    "minus nothing": (block(MINUS_ONE, ONE), block(W_ONE, W_ONE), 127, 127, 0, 0),
    # 1 and a term of 2^-26: one bit below the window of 25, twice; their sum would be within it.
    "cut off one by one": (
        block(ONE), block(W_ONE), 101, 127, F32[1.0], F32[1.0],
    ),
    "last bit of the window": (
        # Two terms of 2^-24: each is within the window, and the sum is float32's last place.
        block(ONE, ONE), block(W_ONE, W_ONE), 103, 127, F32[1.0], 0x3F800001,
    ),
    "one bit below a float's last place": (
        block(ONE), block(W_ONE), 103, 127, F32[1.0], F32[1.0],
    ),
    # Minus 2^-24 from 1 gives 1 - 2^-24, which float32 holds.
    "subtraction keeps the window": (
        block(MINUS_ONE), block(W_ONE), 103, 127, F32[1.0], 0x3F7FFFFF,
    ),
    # 2^-9 counts as a number of exponent -6: 4 * 6 * 2^.. sets the window, not its leading bit.
    "subnormal codes": (block(LEAST), block(W_ONE), 127, 127, 0, 0x3B000000),
    "overflow": (block(0x7E), block(SIX), 254, 127, 0, 0x7F800000),
    "scale of NaN": (block(ONE), block(W_ONE), 255, 127, F32[1.0], 0x7FFFFFFF),
    "NaN by zero": (block(0x7F), block(0), 127, 127, 0, 0x7FFFFFFF),
    "infinity stays": (block(ONE), block(W_ONE), 127, 127, 0xFF800000, 0xFF800000),
}  # fmt: skip


@pytest.mark.parametrize("name", EXAMPLES)
def test_worked_examples(emulator: Emulator, name: str) -> None:
    x, w, x_scale, w_scale, accumulator, expected = EXAMPLES[name]
    ours = emulator.block_mma(x, w, (E4M3, E2M1), (x_scale, w_scale), accumulator)
    assert hex(ours) == hex(expected)
    assert hex(by_model(x, w, x_scale, w_scale, accumulator)) == hex(expected)
