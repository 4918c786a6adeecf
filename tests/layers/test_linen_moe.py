"""W4A8MoE for Linen: the numbers of the NNX layer, variables, conversion, errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn
from flax import traverse_util

import jax_w4a8
from jax_w4a8 import linen
from jax_w4a8.layers.experts import MoEConfig
from jax_w4a8.layers.moe import W4A8MoE
from jax_w4a8.linen import quantize_experts

CONFIG = MoEConfig(top_k=2, score="sigmoid")


def params(seed=0):
    rng = np.random.default_rng(seed)
    normal = lambda *s: rng.normal(size=s).astype(np.float32) / 8  # noqa: E731
    return {
        "router": {"kernel": normal(64, 6) * 8, "bias": normal(6)},
        "gate_up": {"kernel": normal(6, 64, 96), "bias": normal(6, 96)},
        "down": {"kernel": normal(6, 48, 40), "bias": normal(6, 40)},
    }


def model(**options):
    return linen.W4A8MoE(6, 48, 40, CONFIG, use_bias=True, use_router_bias=True, **options)


def tokens(*shape):
    return np.random.default_rng(1).normal(size=(*shape, 64)).astype(np.float32)


@pytest.mark.parametrize("selection", [False, True])
def test_equals_the_nnx_layer(selection):
    p, bias = params(), np.linspace(-0.3, 0.3, 6).astype(np.float32)
    variables = quantize_experts(p)
    if selection:
        variables["moe"] = {"selection_bias": jnp.asarray(bias)}
    layer = W4A8MoE.from_arrays(
        *(p[n]["kernel"] for n in ("router", "gate_up", "down")),
        CONFIG,
        router_bias=p["router"]["bias"],
        gate_up_bias=p["gate_up"]["bias"],
        down_bias=p["down"]["bias"],
        selection_bias=bias if selection else None,
    )
    x = tokens(3, 7)
    y = jax.jit(model(use_selection_bias=selection).apply)(variables, x)
    np.testing.assert_allclose(y, jax.jit(layer)(x), rtol=1e-6, atol=1e-6)


def test_init_quantises_what_the_initialiser_gives():
    layer = linen.W4A8MoE(6, 48, 40, MoEConfig(top_k=2), use_selection_bias=True)
    variables = jax.jit(layer.init)(jax.random.key(0), tokens(2))
    flat = traverse_util.flatten_dict(variables)
    shapes = {"/".join(path): leaf.shape for path, leaf in flat.items()}
    assert shapes == {
        "params/router/kernel": (64, 6),
        "quantized/gate_up/kernel": (6, 64, 96),
        "quantized/down/kernel": (6, 48, 40),
        "moe/selection_bias": (6,),
    }
    kernel = flat["quantized", "gate_up", "kernel"]
    assert isinstance(kernel, jax_w4a8.QuantizedWeight)
    # LeCun's initialiser counts the inputs of one expert, not of all.
    assert 0.9 < float(kernel.dequantize().std()) * 8 < 1.1
    assert jax.eval_shape(layer.apply, variables, tokens(2, 5)).shape == (2, 5, 40)


def test_the_shared_expert_is_added():
    variables, x = quantize_experts(params()), tokens(4)
    both = model(shared=nn.Dense(40))
    own = {"kernel": np.eye(64, 40, dtype=np.float32), "bias": np.arange(40, dtype=np.float32)}
    with_shared = {**variables, "params": {**variables["params"], "shared": own}}
    expected = jax.jit(model().apply)(variables, x) + x @ own["kernel"] + own["bias"]
    y = jax.jit(both.apply)(with_shared, x)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def test_gradients_are_of_params_only():
    variables, x = quantize_experts(params()), tokens(5)

    @jax.jit
    @jax.grad
    def gradient(p):
        return jnp.sum(model().apply({**variables, "params": p}, x) ** 2)

    flat = traverse_util.flatten_dict(gradient(variables["params"]))
    assert set(flat) == {
        ("router", "kernel"),
        ("router", "bias"),
        ("gate_up", "bias"),
        ("down", "bias"),
    }
    assert all(np.any(np.asarray(g)) and np.all(np.isfinite(g)) for g in flat.values())


def test_quantize_experts_leaves_the_rest_in_floats():
    variables = quantize_experts({"block": params(), "head": {"kernel": np.ones((4, 4))}})
    assert set(variables["quantized"]["block"]) == {"gate_up", "down"}
    assert set(variables["params"]["block"]) == {"router", "gate_up", "down"}
    assert set(variables["params"]["block"]["gate_up"]) == {"bias"}
    assert "head" in variables["params"]
    with pytest.raises(ValueError, match="expected to select a kernel, selected none"):
        quantize_experts({"head": {"kernel": np.ones((4, 4))}})


def test_what_is_refused():
    variables, x = quantize_experts(params()), tokens(2)
    with pytest.raises(ValueError, match="expected the packed kernel of gate_up"):
        model().apply({"params": variables["params"]}, x)
    with pytest.raises(ValueError, match="expected a QuantizedWeight of shape"):
        linen.W4A8MoE(6, 32, 40, CONFIG, use_bias=True, use_router_bias=True).apply(variables, x)
    with pytest.raises(ValueError, match="top_k: expected an int from 1 to E = 6"):
        linen.W4A8MoE(6, 48, 40, MoEConfig(top_k=9)).init(jax.random.key(0), x)
