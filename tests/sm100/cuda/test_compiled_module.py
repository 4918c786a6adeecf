"""The extension module on a machine without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest

import jax_w4a8
from jax_w4a8 import _sm100
from jax_w4a8.backends import extension, sm100


def test_its_targets_are_the_documented_ones() -> None:
    names = ("dense", "grouped", "masked", "quantize", "silu_mul_quantize")
    assert set(_sm100.registrations()) == {f"jax_w4a8_sm100_{name}_v1" for name in names}


def test_it_is_built_for_the_oldest_ffi_that_is_supported() -> None:
    assert tuple(_sm100.ffi_api_version()) <= extension.jaxlib_ffi_version()


def test_it_loads_and_registers_without_a_gpu() -> None:
    assert sm100.BACKEND.missing() is None
    assert len(sm100.BACKEND.kernels()) == 21
    w = jax_w4a8.quantize(jnp.ones((64, 16)))
    with jax_w4a8.use_backend("sm100"):
        traced = jax.jit(jax_w4a8.dot).trace(jnp.ones((4, 64)), w)
        assert "jax_w4a8_sm100_dense_v1" in traced.lower(lowering_platforms=("cuda",)).as_text()


def test_info_lists_every_kernel_and_says_why_none_serves() -> None:
    command = [sys.executable, "-m", "jax_w4a8", "info"]
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    text = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    lines = [" ".join(line.split()) for line in text.stdout.splitlines()]
    for kernel in _sm100.kernels():
        assert f"{kernel['tile']} -> {kernel['out']}" in lines
    assert "sm100 does not serve: it runs on cuda, not on cpu" in lines


@pytest.mark.parametrize(
    ("m", "grouped", "tile"), [(1, False, "dense_swap_128x64"), (1, True, "grouped_swap_128x64")]
)
def test_the_tile_choice_is_at_hand(m: int, grouped: bool, tile: str) -> None:
    chosen = _sm100.choose_tile(m=m, n=4096, k=4096, groups=1, grouped=grouped, sm_count=148)
    assert chosen == tile
