"""The run as a picture."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np

matplotlib.use("Agg")
from matplotlib import pyplot as plt

SMOOTH = 20
"""Steps of training that are averaged into one point."""


def draw(
    path: pathlib.Path,
    training: Sequence[float],
    tuning: Sequence[float],
    held_out: Mapping[str, float],
) -> None:
    """Training, fine-tuning and held-out bits per byte, side by side, into the file ``path``."""
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")
    width = max(1, min(SMOOTH, len(training) // 4))
    smooth = np.convolve(training, np.ones(width) / width, mode="valid")
    left.plot(np.arange(len(smooth)) + width, smooth)
    left.set(title="Training in float32", xlabel="step", ylabel="bits per byte")
    middle.plot(np.arange(len(tuning)) + 1, tuning, marker="o")
    middle.set(title="Routers and norms through frozen FP4", xlabel="epoch")
    middle.xaxis.get_major_locator().set_params(integer=True)
    bars = right.bar(list(held_out), list(held_out.values()), color=["C0", "C1", "C2"])
    right.bar_label(bars, fmt="%.3f")
    right.set(title="Held-out text")
    figure.savefig(path, dpi=120)
    plt.close(figure)
