"""Training within a time, evaluation, and fine-tuning of router and norms."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tqdm
from flax import nnx

from .model import LanguageModel, bits_per_byte

BALANCE = 0.02
"""Weight of the experts' imbalance in the loss."""


def loss_of(model: LanguageModel, windows: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Training loss and bits per byte of ``[B, S + 1]`` bytes."""
    logits, uneven = model(windows[:, :-1])
    bits = bits_per_byte(logits, windows[:, 1:])
    return bits + BALANCE * uneven, bits


def trainable(path: tuple[Any, ...], value: Any) -> bool:
    """Whether fine-tuning changes a variable: routers and the scales of norms."""
    return isinstance(value, nnx.Param) and path[-1] in ("router", "scale")


class Trainer:
    """Adam on the variables of a model that ``select`` chooses, all others frozen."""

    def __init__(self, model: LanguageModel, peak: float, select: Any = nnx.Param):
        self._graph, self._params, self._frozen = nnx.split(model, select, ...)
        self._model = model
        optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.scale_by_adam(b2=0.98))
        self._state = optimizer.init(self._params)
        graph = self._graph

        @jax.jit
        def step(params: Any, state: Any, frozen: Any, windows: Any, rate: Any) -> Any:
            def loss(params: Any) -> Any:
                return loss_of(nnx.merge(graph, params, frozen), windows)

            gradient, bits = jax.grad(loss, has_aux=True)(params)
            update, state = optimizer.update(gradient, state, params)
            update = jax.tree.map(lambda u: -rate * u, update)
            return optax.apply_updates(params, update), state, bits

        self._step, self._peak = step, peak

    def step(self, windows: np.ndarray, progress: float) -> float:
        """One step at ``progress`` (0 to 1) of the schedule; returns bits per byte before it."""
        warm = min(1.0, progress / 0.05 + 0.02)
        rate = self._peak * warm * 0.5 * (1 + np.cos(np.pi * progress))
        self._params, self._state, bits = self._step(
            self._params, self._state, self._frozen, windows, jnp.float32(rate)
        )
        return float(bits)

    def finish(self) -> None:
        """Puts the trained values into the model."""
        nnx.update(self._model, self._params)


def train(
    model: LanguageModel,
    batch: Callable[[], np.ndarray],
    steps: int,
    seconds: float,
    peak: float,
) -> list[float]:
    """Trains for ``steps``, or ``seconds`` if these pass first; returns bits per byte of each step.

    The learning rate follows whichever of the two is further on, so that it ends low either way.
    """
    trainer, history = Trainer(model, peak), []
    began = time.monotonic()
    bar = tqdm.tqdm(total=1.0, desc="training", bar_format="{l_bar}{bar}| {elapsed}{postfix}")
    for index in range(steps):
        progress = max(index / steps, (time.monotonic() - began) / seconds)
        if progress >= 1:
            break
        history.append(trainer.step(batch(), progress))
        bar.update(progress - bar.n)
        bar.set_postfix_str(f"{history[-1]:.3f} bits per byte")
    bar.update(1 - bar.n)
    bar.close()
    trainer.finish()
    return history


def fine_tune(
    model: LanguageModel, batches: list[np.ndarray], epochs: int, peak: float
) -> list[float]:
    """Trains routers and norms through the frozen experts; bits per byte of each epoch."""
    trainer, history = Trainer(model, peak, trainable), []
    total = epochs * len(batches)
    with tqdm.tqdm(total=total, desc="fine-tuning", unit="step") as bar:
        for epoch in range(epochs):
            bits = []
            for index, windows in enumerate(batches):
                bits.append(trainer.step(windows, (epoch * len(batches) + index) / total))
                bar.update()
            history.append(float(np.mean(bits)))
            bar.set_postfix_str(f"{history[-1]:.3f} bits per byte")
    trainer.finish()
    return history


def evaluate(model: LanguageModel, windows: np.ndarray, batch: int, name: str) -> float:
    """Mean bits per byte of ``windows``."""
    graph, state = nnx.split(model)

    @jax.jit
    def bits(state: Any, windows: Any) -> jax.Array:
        return loss_of(nnx.merge(graph, state), windows)[1]

    starts = tqdm.trange(0, len(windows), batch, desc=f"evaluating {name}", unit="batch")
    return float(np.mean([float(bits(state, windows[i : i + batch])) for i in starts]))
