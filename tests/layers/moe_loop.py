"""A mixture of experts as a loop over tokens in float64 NumPy, from the formats' definitions."""

import numpy as np

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def weight(w):
    """float64 ``[E, K, N]`` of a packed weight in the plain layout."""
    codes, scales = np.asarray(w.codes), np.asarray(w.scales).astype(np.float64)
    values = E2M1[np.stack([codes & 15, codes >> 4], axis=-1).reshape(*codes.shape[:-1], -1)]
    values = values * np.repeat(2.0 ** (scales - 127), 32, axis=-1)
    return np.swapaxes(values, -1, -2)[..., : w.k, :]


def fp8(row, block):
    """What is left of a row ``[K]`` after quantisation to E4M3 with power-of-two scales."""
    width = len(row) if block == "row" else block
    blocks = [row[i : i + width] for i in range(0, len(row), width)]
    return np.concatenate([_fp8_block(b) for b in blocks])


def _fp8_block(values):
    amax = np.abs(values).max()
    if amax == 0:
        return np.zeros_like(values)
    scale = 2.0 ** max(np.ceil(np.log2(amax / 448)), -127)
    values = values / scale
    exponents = np.floor(np.log2(np.maximum(np.abs(values), 2.0**-6)))
    step = 2.0 ** (exponents - 3)
    return np.clip(np.rint(values / step) * step, -448, 448) * scale


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def gate(h, activation="silu", interleaved=False):
    """``[2 * I]`` to ``[I]``."""
    g, u = (h[0::2], h[1::2]) if interleaved else np.split(h, 2)
    if activation == "silu":
        return g * sigmoid(g) * u
    g, u = np.minimum(g, 7.0), np.clip(u, -7.0, 7.0)
    return g * sigmoid(1.702 * g) * (u + 1)


def scores(logits, score):
    """The scores of ``[E]`` logits."""
    if score == "softmax":
        e = np.exp(logits - logits.max())
        return e / e.sum()
    return sigmoid(logits) if score == "sigmoid" else np.sqrt(np.log1p(np.exp(logits)))


def top_k(logits, k, score="softmax", bias=0.0, renormalize=True, scale=1.0):
    """Weights and ids ``[k]`` of one token's ``[E]`` logits."""
    s = scores(np.asarray(logits, np.float64), score)
    ids = np.argsort(-(s + bias), kind="stable")[:k]
    weights = s[ids] / (s[ids].sum() if renormalize else 1.0)
    return weights * scale, ids


def moe(layer, x):
    """A ``W4A8MoE`` without a shared expert on tokens ``[T, D]``, one token at a time."""
    config, x = layer.config, np.asarray(x, np.float64)
    gate_up, down = weight(layer.gate_up.get_value()), weight(layer.down.get_value())

    def floats(name):
        variable = getattr(layer, name)
        return None if variable is None else np.asarray(variable[...], np.float64)

    def row(name, expert):
        return 0.0 if floats(name) is None else floats(name)[expert]

    y = np.zeros((len(x), down.shape[-1]))
    for t, token in enumerate(x):
        weights, ids = top_k(
            token @ floats("router") + row("router_bias", slice(None)),
            config.top_k,
            config.score,
            row("selection_bias", slice(None)),
            config.renormalize,
            config.route_scale,
        )
        for w, e in zip(weights, ids, strict=True):
            h = fp8(token, config.block) @ gate_up[e] + row("gate_up_bias", e)
            a = gate(h, config.activation, config.interleaved)
            y[t] += w * (fp8(a, config.block) @ down[e] + row("down_bias", e))
    return y
