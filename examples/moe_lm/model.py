"""A small byte-level language model: attention, and a mixture of experts in every block."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from flax import nnx

from jax_w4a8.layers import MoE, MoEConfig, W4A8MoE

BYTES = 256


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Sizes of the model."""

    length: int = 128
    width: int = 128
    heads: int = 4
    blocks: int = 3
    experts: int = 8
    hidden: int = 128
    top_k: int = 2


class Block(nnx.Module):
    """Causal self-attention, then a mixture of experts, each added to its normalised input."""

    def __init__(self, sizes: Sizes, *, rngs: nnx.Rngs):
        self.heads = sizes.heads
        self.norm_attention = nnx.RMSNorm(sizes.width, rngs=rngs)
        self.qkv = nnx.Linear(sizes.width, 3 * sizes.width, use_bias=False, rngs=rngs)
        self.out = nnx.Linear(sizes.width, sizes.width, use_bias=False, rngs=rngs)
        self.norm_moe = nnx.RMSNorm(sizes.width, rngs=rngs)
        config = MoEConfig(top_k=sizes.top_k)
        self.moe = MoE.init(sizes.width, sizes.hidden, sizes.experts, config, rngs=rngs)

    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """``[B, S, D]`` to the same, and how unevenly the experts are used (1 is even)."""
        qkv = self.qkv(self.norm_attention(x)).reshape(*x.shape[:2], 3, self.heads, -1)
        q, k, v = jnp.unstack(qkv, axis=2)
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.reshape(x.shape))
        normed = self.norm_moe(x)
        return x + self.moe(normed), imbalance(self.moe, normed)


def imbalance(moe: MoE | W4A8MoE, x: jax.Array) -> jax.Array:
    """Switch Transformer's balancing loss: E * sum of (share of rows) * (mean probability)."""
    _, ids = moe.route(x)
    experts = moe.router.shape[1]
    share = jnp.mean(ids[..., None] == jnp.arange(experts), axis=(0, 1, 2))
    probability = jnp.mean(jax.nn.softmax(x @ moe.router[...]), axis=(0, 1))
    return experts * jnp.sum(share * probability)


class LanguageModel(nnx.Module):
    """Predicts each byte from those before it."""

    def __init__(self, sizes: Sizes, *, rngs: nnx.Rngs):
        self.embed = nnx.Embed(BYTES, sizes.width, rngs=rngs)
        self.position = nnx.Embed(sizes.length, sizes.width, rngs=rngs)
        self.mix = nnx.Conv(sizes.width, sizes.width, (4,), padding="CAUSAL", rngs=rngs)
        self.blocks = nnx.List([Block(sizes, rngs=rngs) for _ in range(sizes.blocks)])
        self.norm = nnx.RMSNorm(sizes.width, rngs=rngs)
        self.head = nnx.Linear(sizes.width, BYTES, use_bias=False, rngs=rngs)

    def __call__(self, tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        """``[B, S]`` bytes to logits ``[B, S, 256]``, and the mean imbalance of the blocks."""
        # Each byte sees the three before it at once: spelling is learnt within the first seconds.
        x = self.mix(self.embed(tokens)) + self.position(jnp.arange(tokens.shape[1]))
        uneven = jnp.float32(0)
        for block in self.blocks:
            x, one = block(x)
            uneven += one / len(self.blocks)
        return self.head(self.norm(x)), uneven


def quantize_experts(model: LanguageModel) -> LanguageModel:
    """Swaps the experts for FP4 ones, in place."""
    for block in model.blocks:
        block.moe = W4A8MoE.from_float(block.moe)
    return model


def expert_bytes(model: LanguageModel) -> int:
    """Bytes of the experts' weights."""
    weights = [w.get_value() for block in model.blocks for w in (block.moe.gate_up, block.moe.down)]
    return sum(w.nbytes for w in weights)


def bits_per_byte(logits: jax.Array, targets: jax.Array) -> jax.Array:
    """Mean cross-entropy in bits."""
    log_p = jax.nn.log_softmax(logits.astype(jnp.float32))
    chosen = jnp.take_along_axis(log_p, targets[..., None].astype(jnp.int32), axis=-1)
    return -jnp.mean(chosen) / jnp.log(2.0)
