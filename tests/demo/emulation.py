"""all-MiniLM-L6-v2 in float32 NumPy, with weights and activations quantised by NumPy.

Written from the model's and the formats' descriptions; shares no code with the package.
"""

import numpy as np
import scipy.special

HEADS, LAYERS, EPSILON = 12, 6, 1e-12
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)


def round_e2m1(x):
    """Nearest E2M1 value, ties to the even code, saturating."""
    low = np.clip(np.searchsorted(E2M1, np.abs(x), side="right") - 1, 0, 6)
    middle = (E2M1[low] + E2M1[low + 1]) / 2
    up = (np.abs(x) > middle) | ((np.abs(x) == middle) & (low % 2 == 1))
    return np.copysign(E2M1[low + up], x)


def round_e4m3(x):
    """Nearest E4M3 value, ties to even, saturating at 448."""
    _, exponent = np.frexp(x)
    step = np.exp2(np.maximum(exponent - 1, -6).astype(np.float32) - 3)
    return np.clip(np.rint(x / step) * step, -448, 448)


def power(exponent):
    """2**exponent in float32."""
    return np.ldexp(np.float32(1), exponent.astype(int)).astype(np.float32)


def fp4_weight(w):
    """``[N, K]`` through FP4: of the ceil and the floor scale, the one with the smaller error."""
    blocks = w.reshape(len(w), -1, 32)
    amax = np.abs(blocks).max(axis=-1, keepdims=True).astype(np.float64)
    amax[amax == 0] = 6
    candidates = []
    for exponent in (np.floor(np.log2(amax)) - 2, np.ceil(np.log2(amax / 6))):
        scale = power(exponent)
        values = round_e2m1(blocks / scale) * scale
        error = np.sum((values - blocks.astype(np.float64)) ** 2, axis=-1, keepdims=True)
        candidates.append((values, error))
    (floor, floor_error), (ceil, ceil_error) = candidates
    return np.where(floor_error < ceil_error, floor, ceil).reshape(w.shape)


def fp8_activation(x):
    """``[..., K]`` through FP8, one scale for every 128 along K."""
    blocks = x.reshape(*x.shape[:-1], -1, 128)
    amax = np.abs(blocks).max(axis=-1, keepdims=True).astype(np.float64)
    amax[amax == 0] = 448
    scale = power(np.ceil(np.log2(amax / 448)))
    return (round_e4m3(blocks / scale) * scale).reshape(x.shape)


def embed(tensors, ids, mask, *, quantised):
    """Sentence embeddings ``[B, 384]`` from published tensors, linear weights ``[N, K]``."""

    def linear(x, name):
        w = tensors[f"{name}.weight"]
        if quantised:
            x, w = fp8_activation(x), fp4_weight(w)
        rows = x.reshape(-1, x.shape[-1]) @ w.T  # one large product: NumPy loops over more axes
        return rows.reshape(*x.shape[:-1], -1) + tensors[f"{name}.bias"]

    def norm(x, name):
        x = x - x.mean(axis=-1, keepdims=True)
        x = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + np.float32(EPSILON))
        return x * tensors[f"{name}.weight"] + tensors[f"{name}.bias"]

    def heads(x):
        return x.reshape(*x.shape[:2], HEADS, -1).swapaxes(1, 2)

    table = {n: tensors[f"embeddings.{n}_embeddings.weight"] for n in ("word", "position")}
    kind = tensors["embeddings.token_type_embeddings.weight"][0]
    x = table["word"][ids] + table["position"][: ids.shape[1]] + kind
    x = norm(x, "embeddings.LayerNorm")
    for i in range(LAYERS):
        layer = f"encoder.layer.{i}"
        query, key, value = (
            heads(linear(x, f"{layer}.attention.self.{name}")) for name in ("query", "key", "value")
        )
        scores = query @ key.swapaxes(-1, -2) / np.float32(np.sqrt(query.shape[-1]))
        scores = np.where(mask[:, None, None, :], scores, -np.inf)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        mixed = (weights @ value).swapaxes(1, 2).reshape(x.shape)
        x = x + linear(mixed, f"{layer}.attention.output.dense")
        x = norm(x, f"{layer}.attention.output.LayerNorm")
        inner = linear(x, f"{layer}.intermediate.dense")
        inner = inner * scipy.special.ndtr(inner)  # GELU, by the normal distribution function
        x = norm(x + linear(inner, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
    pooled = (x * mask[..., None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
    return pooled / np.linalg.norm(pooled, axis=-1, keepdims=True)
