"""The mixture-of-experts example, from end to end with few steps."""

import os
import pathlib
import re
import subprocess
import sys

import numpy as np

ROOT = pathlib.Path(__file__).parents[2]
FEW = ["--steps", "4", "--blocks", "1", "--windows", "8", "--batches", "2", "--epochs", "2"]


def test_it_trains_quantises_and_fine_tunes(tmp_path):
    environment = os.environ | {"XLA_FLAGS": "", "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "examples/moe_lm.py", *FEW, "--out", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    for bar in ("training", "evaluating float32", "evaluating W4A8", "fine-tuning"):
        assert re.search(rf"{bar}: 100%", done.stderr)
    floats, quantised = (
        float(re.search(rf"{name} +(\d\.\d+)", done.stdout)[1]) for name in ("float32", "W4A8")
    )
    # An untrained model needs 8 bits for each byte.
    assert 3 < floats < 8
    assert quantised < 1.02 * floats
    first, last = re.search(r"loss from (\S+) to (\S+)", done.stdout).groups()
    assert float(last) < float(first)
    sizes = re.search(r"experts: ([\d,]+) bytes in float32, ([\d,]+) in FP4", done.stdout)
    ratio = int(sizes[1].replace(",", "")) / int(sizes[2].replace(",", ""))
    np.testing.assert_allclose(ratio, 32 / 4.25)
    assert (tmp_path / "moe_lm.png").read_bytes().startswith(b"\x89PNG")
    assert {p.name for p in tmp_path.iterdir()} == {"moe_lm.png", "float32", "w4a8"}
