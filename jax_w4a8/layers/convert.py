"""Whole models: swap float layers for FP4 ones, and pack FP4 weights for this machine."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping, MutableSequence
from typing import Any, TypeVar

from flax import nnx

from jax_w4a8.layers.dense import PackedWeight, W4A8Dense, is_linear
from jax_w4a8.ops import prepack
from jax_w4a8.weights import ScaleRule

Path = tuple[Any, ...]
Slot = tuple[Path, Any, Any]  # path of a layer, what holds it, under which key
Model = TypeVar("Model")


def quantize_layers(
    model: Model,
    where: Callable[[Path], bool] = lambda path: True,
    *,
    block: int | str = 128,
    rule: ScaleRule = "mse",
) -> Model:
    """Swaps the ``nnx.Linear`` layers of a model for ``W4A8Dense``, in place.

    One layer at a time, its float kernel dropped before the next is quantised: the peak is the
    size of the model plus one layer. A layer that is used in several places stays shared::

        quantize_layers(model, where=lambda path: "lm_head" not in path)

    Args:
      model: an ``nnx.Module``.
      where: says for the path of each layer, such as ``("blocks", 0, "mlp", "up")``, whether to
        quantise it; all of them unless said otherwise.
      block, rule: see ``W4A8Dense.from_dense``.

    Returns:
      ``model`` itself.

    Raises:
      TypeError: ``model`` is no container of layers, or holds a selected one in a tuple.
      ValueError: ``where`` selected no layer, or a selected one cannot be quantised.
    """
    if is_linear(model) or not isinstance(model, nnx.Module):
        raise TypeError(
            f"model: expected an nnx.Module that holds nnx.Linear layers, got "
            f"{type(model).__name__}; W4A8Dense.from_dense(linear) quantises a single layer"
        )
    slots = _linears(model)
    selected = [layer for layer in slots.values() if any(where(path) for path, _, _ in layer)]
    if not selected:
        paths = ["/".join(map(str, path)) for ((path, _, _), *_) in slots.values()]
        some = ", ".join(paths[:5]) + (", ..." if len(paths) > 5 else "")
        raise ValueError(
            f"where: expected to select an nnx.Linear, selected none of {len(paths)}"
            + (f" ({some})" if paths else "; the model holds none")
        )
    for layer in selected:
        _swap(layer, block, rule)
    return model


def prepack_layers(model: Model, *, layout: str | None = None) -> Model:
    """Brings every packed weight of a model into the layout of its kernel, in place.

    Args:
      model: an ``nnx.Module``.
      layout: see ``jax_w4a8.prepack``.

    Returns:
      ``model`` itself.

    Raises:
      ValueError, BackendError: as ``jax_w4a8.prepack``.
    """
    for _, node in nnx.iter_graph(model):
        if isinstance(node, PackedWeight):
            node.set_value(prepack(node.get_value(), layout=layout))
    return model


def _linears(model: Any) -> dict[int, list[Slot]]:
    """The places of each ``nnx.Linear``, by the layer's ``id``.

    The layers themselves are not kept: a reference would keep their float kernels alive.
    """
    slots: dict[int, list[Slot]] = {}
    for path, owner in nnx.iter_graph(model):
        for key, child in _items(owner):
            if is_linear(child):
                slots.setdefault(id(child), []).append(((*path, key), owner, key))
    return slots


def _items(owner: Any) -> list[tuple[Any, Any]]:
    if isinstance(owner, (list, tuple, nnx.List)):
        return list(enumerate(owner))
    if isinstance(owner, (dict, nnx.Dict)):
        return list(owner.items())
    return list(vars(owner).items()) if isinstance(owner, nnx.Pytree) else []


def _swap(slots: list[Slot], block: int | str, rule: ScaleRule) -> None:
    path, owner, key = slots[0]
    name = "/".join(map(str, path))
    try:
        layer = W4A8Dense.from_dense(dict(_items(owner))[key], block=block, rule=rule)
    except (TypeError, ValueError) as error:
        raise type(error)(f"layer {name!r}: {error}") from error
    for _, owner, key in slots:
        if isinstance(owner, tuple):
            raise TypeError(f"layer {name!r}: expected a mutable owner, got a tuple; use nnx.List")
        if isinstance(owner, (MutableSequence, MutableMapping)):
            owner[key] = layer
        else:
            setattr(owner, key, layer)
