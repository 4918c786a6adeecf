"""Trains a byte-level mixture of experts, quantises its experts, fine-tunes through them.

The text is the source code of Python's standard library. Training in float32 takes at most three
minutes on two cores and ends in an Orbax checkpoint; the experts of the restored model become FP4
(W4A8), and then only routers and norms are trained on, through the frozen FP4 experts. Reports bits
per byte of held-out files at each stage, and draws all of it into build/moe_lm/moe_lm.png.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
import time

import numpy as np
import orbax.checkpoint as ocp
from flax import nnx
from moe_lm import picture, text
from moe_lm.model import LanguageModel, Sizes, expert_bytes, quantize_experts
from moe_lm.training import evaluate, fine_tune, train

import jax_w4a8

BATCH = 8
RISE = 0.02
"""By how much quantising may make the held-out bits per byte rise."""


def main() -> None:
    """Runs the whole example; ends with an error if a number is not as good as promised."""
    options = parse()
    began = time.monotonic()
    out = pathlib.Path(options.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    sizes = Sizes(blocks=options.blocks)
    rng = np.random.default_rng(0)
    training, held_out = text.load(8_000_000)
    print(f"text: {len(training):,} bytes to train on, {len(held_out):,} held out; {sizes}")

    def batch() -> np.ndarray:
        return text.windows(training, sizes.length, BATCH, rng)

    test = text.windows(held_out, sizes.length, options.windows, np.random.default_rng(1))
    model = LanguageModel(sizes, rngs=nnx.Rngs(0))
    history = train(model, batch, options.steps, options.seconds, peak=4e-3)
    save(out / "float32", model)

    model = restore(out / "float32", sizes)
    bits = {"float32": evaluate(model, test, BATCH, "float32")}
    before = sum(w.nbytes for b in model.blocks for w in (b.moe.gate_up[...], b.moe.down[...]))
    quantize_experts(model)
    print(f"experts: {before:,} bytes in float32, {expert_bytes(model):,} in FP4")
    bits["W4A8"] = evaluate(model, test, BATCH, "W4A8")

    batches = [batch() for _ in range(options.batches)]
    tuning = fine_tune(model, batches, options.epochs, peak=1e-3)
    save(out / "w4a8", model)
    bits["fine-tuned"] = evaluate(model, test, BATCH, "fine-tuned")

    picture.draw(out / "moe_lm.png", history, tuning, bits)
    rise = bits["W4A8"] / bits["float32"] - 1
    print(f"\n{len(history)} steps; held-out bits per byte:", end="")
    print("".join(f"\n  {name:11} {value:.4f}" for name, value in bits.items()))
    print(f"quantising the experts: {rise:+.2%} (at most {RISE:+.0%})")
    print(f"fine-tuning through them: loss from {tuning[0]:.4f} to {tuning[-1]:.4f}")
    print(f"picture and checkpoints in {out}; took {time.monotonic() - began:.0f} s")
    if not rise <= RISE:
        sys.exit(f"moe_lm: bits per byte rose by {rise:.2%}, more than {RISE:.0%}")
    if not tuning[-1] < tuning[0]:
        sys.exit(f"moe_lm: fine-tuning did not lower the loss: {tuning}")


def parse() -> argparse.Namespace:
    """The options of the command line."""
    summary = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(
        description=summary, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=1000, help="training steps at most")
    parser.add_argument("--seconds", type=float, default=150, help="training time at most")
    parser.add_argument("--blocks", type=int, default=2, help="blocks of the model")
    parser.add_argument("--windows", type=int, default=256, help="held-out stretches of text")
    parser.add_argument("--batches", type=int, default=24, help="batches to fine-tune on")
    parser.add_argument("--epochs", type=int, default=3, help="times to go through them")
    parser.add_argument("--out", default="build/moe_lm", help="folder for what is written")
    return parser.parse_args()


def save(path: pathlib.Path, model: LanguageModel) -> None:
    """Writes an Orbax checkpoint, packed weights included."""
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(path, nnx.state(model), force=True)


def restore(path: pathlib.Path, sizes: Sizes) -> LanguageModel:
    """The float model from its checkpoint, without making its weights first."""
    model = nnx.eval_shape(lambda: LanguageModel(sizes, rngs=nnx.Rngs(0)))
    graph, state = nnx.split(model)
    with ocp.StandardCheckpointer() as checkpointer:
        return nnx.merge(graph, checkpointer.restore(path, state))


if __name__ == "__main__":
    try:
        main()
    except jax_w4a8.BackendError as error:
        sys.exit(f"moe_lm: {error}")
