"""W4A8MoE for NNX against a loop over tokens; conversion, training, errors."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
import pytest
from flax import nnx

import jax_w4a8
from jax_w4a8.layers import PackedWeight, prepack_layers
from jax_w4a8.layers.experts import MASKED_TOKENS, MoEConfig
from jax_w4a8.layers.moe import MoE, W4A8MoE, join_gate_up
from tests.layers import moe_loop

FORMS = ("contiguous", "masked")


def arrays(features=64, hidden=48, experts=6, out=40, seed=0):
    rng = np.random.default_rng(seed)
    normal = lambda *s: rng.normal(size=s).astype(np.float32)  # noqa: E731
    return {
        "router": normal(features, experts),
        "gate_up": normal(experts, features, 2 * hidden) / features**0.5,
        "down": normal(experts, hidden, out) / hidden**0.5,
        "router_bias": normal(experts),
        "selection_bias": normal(experts) / 4,
        "gate_up_bias": normal(experts, 2 * hidden),
        "down_bias": normal(experts, out),
    }


def make(config, biases=True, **sizes):
    parts = arrays(**sizes)
    three = [parts.pop(n) for n in ("router", "gate_up", "down")]
    return W4A8MoE.from_arrays(*three, config, **(parts if biases else {}))


def with_config(layer, **changes):
    """The layer with another ``config`` and the same weights."""
    graph, state = nnx.split(layer)
    layer = nnx.merge(graph, state)
    layer.config = dataclasses.replace(layer.config, **changes)
    return layer


def tokens(count, features=64, seed=1):
    return np.random.default_rng(seed).normal(size=(count, features)).astype(np.float32)


apply = nnx.jit(lambda layer, x: layer(x))

CONFIGS = {
    "mixtral": (MoEConfig(top_k=2), {}),
    "gpt-oss": (MoEConfig(top_k=3, activation="clamped_swiglu", interleaved=True), {}),
    "deepseek": (
        MoEConfig(top_k=3, score="sigmoid", route_scale=2.5),
        {"features": 200, "hidden": 160},
    ),
    "qwen": (MoEConfig(top_k=2, renormalize=False, block=32), {"features": 96}),
    "sqrt softplus": (MoEConfig(top_k=6, score="sqrt_softplus", block="row"), {"features": 72}),
    "one of one": (MoEConfig(top_k=1), {"experts": 1}),
}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("biases", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_equals_a_loop_over_tokens(name, biases, form):
    config, sizes = CONFIGS[name]
    layer = make(dataclasses.replace(config, form=form), biases, **sizes)
    x = tokens(19, sizes.get("features", 64))
    y = apply(layer, x)
    expected = moe_loop.moe(layer, x)
    np.testing.assert_allclose(y, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision_rounds_between_the_products(dtype):
    layer = make(MoEConfig(top_k=2))
    x = jnp.asarray(tokens(19), dtype)
    y = apply(layer, x)
    expected = moe_loop.moe(layer, np.asarray(x, np.float32))
    assert y.dtype == dtype
    # The rounding of h may move an activation by one step of E4M3, 2^-3 of its value.
    error = np.abs(np.asarray(y, np.float64) - expected)
    assert error.max() <= 0.05 * np.abs(expected).max()
    assert np.sqrt(np.mean(error**2)) <= 0.01 * np.sqrt(np.mean(expected**2))


def test_config_dtype_is_that_of_the_result():
    layer = make(MoEConfig(top_k=2, dtype=jnp.bfloat16))
    x = tokens(5)
    y = apply(layer, x)
    assert y.dtype == jnp.bfloat16
    weights, ids = layer.route(x)
    expected_weights, expected_ids = with_config(layer, dtype=None).route(x)
    np.testing.assert_array_equal(ids, expected_ids)
    np.testing.assert_array_equal(weights, expected_weights)


def test_both_forms_give_the_same_numbers():
    layer = make(MoEConfig(top_k=3))
    x = tokens(33)
    one, other = (apply(with_config(layer, form=form), x) for form in FORMS)
    np.testing.assert_allclose(one, other, rtol=0, atol=2e-6 * np.abs(one).max())


@pytest.mark.parametrize(
    ("form", "count", "masked"),
    [
        ("auto", MASKED_TOKENS, True),
        ("auto", MASKED_TOKENS + 1, False),
        ("contiguous", 1, False),
        ("masked", MASKED_TOKENS + 1, True),
    ],
)
def test_the_rule_for_the_form_and_its_override(form, count, masked):
    layer = make(MoEConfig(top_k=2, form=form))
    products = str(jax.make_jaxpr(layer)(tokens(count)))
    kinds = {kind for kind in ("grouped", "masked") if f"{kind} product M=" in products}
    assert kinds == {"masked" if masked else "grouped"}


@pytest.mark.parametrize("shape", [(0, 64), (2, 0, 64), (64,), (2, 3, 64)])
@pytest.mark.parametrize("form", FORMS)
def test_leading_dimensions(shape, form):
    layer = make(MoEConfig(top_k=2, form=form))
    x = tokens(6)[: int(np.prod(shape[:-1]))]
    y = apply(layer, x.reshape(shape))
    assert y.shape == (*shape[:-1], 40)
    if x.size:
        expected = moe_loop.moe(layer, x)
        y = y.reshape(expected.shape)
        np.testing.assert_allclose(y, expected, rtol=0, atol=2e-5 * np.abs(expected).max())


def test_the_shared_expert_is_added():
    shared = nnx.Linear(64, 40, rngs=nnx.Rngs(0))
    parts = arrays()
    three = [parts[n] for n in ("router", "gate_up", "down")]
    layer = W4A8MoE.from_arrays(*three, MoEConfig(top_k=2), shared=shared)
    plain = W4A8MoE.from_arrays(*three, MoEConfig(top_k=2))
    x = tokens(7)
    kernel = np.asarray(shared.kernel[...], np.float64)
    expected = np.asarray(apply(plain, x)) + x @ kernel
    np.testing.assert_allclose(apply(layer, x), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_a_nan_stays_in_its_token(form):
    layer = make(MoEConfig(top_k=2, form=form))
    x = tokens(9)
    clean = np.asarray(apply(layer, x))
    x[4, 7] = np.nan
    y = np.asarray(apply(layer, x))
    assert np.isnan(y[4]).all()
    rest = np.arange(9) != 4
    np.testing.assert_allclose(y[rest], clean[rest], rtol=0, atol=2e-6 * np.abs(clean).max())


def float_layer(use_bias=True, **config):
    layer = MoE.init(64, 48, 6, MoEConfig(top_k=2, **config), rngs=nnx.Rngs(0), use_bias=use_bias)
    if use_bias:
        layer.down_bias.set_value(jnp.asarray(arrays(out=64)["down_bias"]))
        layer.gate_up_bias.set_value(jnp.asarray(arrays()["gate_up_bias"]))
    return layer


@pytest.mark.parametrize("interleaved", [False, True])
def test_the_float_layer_is_a_loop_over_tokens(interleaved):
    layer = float_layer(interleaved=interleaved)
    x = tokens(11)
    y = apply(layer, x)
    values = {
        n: np.asarray(getattr(layer, n)[...], np.float64)
        for n in ("router", "gate_up", "down", "gate_up_bias", "down_bias")
    }
    expected = np.zeros((11, 64))
    for t, token in enumerate(x.astype(np.float64)):
        for w, e in zip(*moe_loop.top_k(token @ values["router"], 2), strict=True):
            h = token @ values["gate_up"][e] + values["gate_up_bias"][e]
            a = moe_loop.gate(h, interleaved=interleaved)
            expected[t] += w * (a @ values["down"][e] + values["down_bias"][e])
    np.testing.assert_allclose(y, expected, rtol=0, atol=1e-5 * np.abs(expected).max())


def test_from_float_keeps_all_but_the_experts():
    floats = float_layer()
    floats.shared = nnx.Linear(64, 64, rngs=nnx.Rngs(1))
    layer = W4A8MoE.from_float(floats, block=32, form="masked", rule="ceil")
    assert (layer.config.block, layer.config.form, layer.config.top_k) == (32, "masked", 2)
    for name in ("router", "gate_up_bias", "down_bias"):
        np.testing.assert_array_equal(getattr(layer, name)[...], getattr(floats, name)[...])
    assert layer.shared is floats.shared
    assert isinstance(layer.gate_up, PackedWeight)
    for name in ("gate_up", "down"):
        expected = jax_w4a8.quantize(getattr(floats, name)[...], rule="ceil")
        np.testing.assert_array_equal(getattr(layer, name).get_value().codes, expected.codes)
    y, expected = apply(layer, tokens(40)), apply(floats, tokens(40))
    error = np.linalg.norm(y - expected) / np.linalg.norm(expected)
    assert error < 0.15


@pytest.mark.parametrize("interleaved", [False, True])
def test_gate_and_up_may_come_apart(interleaved):
    rng = np.random.default_rng(3)
    gate, up = rng.normal(size=(2, 6, 64, 48)).astype(np.float32)
    joined = join_gate_up(gate, up, interleaved=interleaved)
    halves = (joined[..., ::2], joined[..., 1::2]) if interleaved else np.split(joined, 2, -1)
    np.testing.assert_array_equal(halves[0], gate)
    np.testing.assert_array_equal(halves[1], up)
    parts, config = arrays(), MoEConfig(top_k=2, interleaved=interleaved)
    one = W4A8MoE.from_arrays(parts["router"], (gate, up), parts["down"], config)
    other = W4A8MoE.from_arrays(parts["router"], joined, parts["down"], config)
    np.testing.assert_array_equal(apply(one, tokens(3)), apply(other, tokens(3)))


def test_prepacked_weights_give_the_same_numbers():
    layer = make(MoEConfig(top_k=2))
    expected = apply(layer, tokens(8))
    prepack_layers(layer)
    np.testing.assert_array_equal(apply(layer, tokens(8)), expected)


def test_gradients_flow_to_router_biases_and_input_only():
    layer, x = make(MoEConfig(top_k=2)), tokens(12)
    probe = tokens(12, 40, seed=5)
    dequantised = MoE(
        layer.router[...],
        layer.gate_up.get_value().dequantize(),
        layer.down.get_value().dequantize(),
        layer.config,
        **layer._others(),
    )

    @nnx.jit
    def gradients(layer, x):
        return nnx.grad(lambda m, x: jnp.sum(m(x) * probe), argnums=(0, 1))(layer, x)

    (got, got_x), (expected, expected_x) = gradients(layer, x), gradients(dequantised, x)
    assert set(got) == {"router", "router_bias", "gate_up_bias", "down_bias"}
    # Straight through the FP8 quantiser: equal to the float layer's but for its rounding.
    for name in got:
        a, b = np.asarray(got[name][...]), np.asarray(expected[name][...])
        assert np.linalg.norm(a - b) < 0.05 * np.linalg.norm(b), name
    assert np.linalg.norm(got_x - expected_x) < 0.05 * np.linalg.norm(expected_x)
    forms = [gradients(with_config(layer, form=form), x)[1] for form in FORMS]
    np.testing.assert_allclose(*forms, rtol=0, atol=1e-5 * np.abs(forms[0]).max())


def test_a_training_step_leaves_no_tracer_in_the_state():
    layer, x = make(MoEConfig(top_k=2)), tokens(12)
    before = layer.gate_up.get_value().codes

    @nnx.jit
    def step(layer, x):
        gradient = nnx.grad(lambda m: jnp.mean(m(x) ** 2))(layer)
        params = nnx.state(layer, nnx.Param)
        nnx.update(layer, jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient))

    router = np.asarray(layer.router[...])
    for _ in range(2):
        step(layer, x)
    leaves = jax.tree.leaves(nnx.state(layer))
    assert leaves
    assert not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
    assert np.any(np.asarray(layer.router[...]) != router)
    np.testing.assert_array_equal(layer.gate_up.get_value().codes, before)
    assert np.all(np.isfinite(layer(x)))


def test_layers_of_experts_scan():
    layers = [make(MoEConfig(top_k=2), out=64, seed=s) for s in range(3)]
    graph, states = nnx.split(layers[0])[0], [nnx.state(layer) for layer in layers]
    stacked = jax.tree.map(lambda *a: jnp.stack(a), *states)
    x = tokens(5)

    def body(x, state):
        return x + nnx.merge(graph, state)(x), None

    y, _ = jax.jit(lambda x: jax.lax.scan(body, x, stacked))(x)
    expected = jnp.asarray(x)
    for layer in layers:
        expected = expected + apply(layer, expected)
    np.testing.assert_allclose(y, expected, rtol=1e-4, atol=1e-4)


def test_a_checkpoint_holds_the_packed_weights(tmp_path):
    layer, x = make(MoEConfig(top_k=2)), tokens(5)
    graph, state = nnx.split(layer)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "layer", state)
    with ocp.StandardCheckpointer() as checkpointer:
        shapes = jax.tree.map(ocp.utils.to_shape_dtype_struct, state)
        restored = checkpointer.restore(tmp_path / "layer", shapes)
    np.testing.assert_array_equal(apply(nnx.merge(graph, restored), x), apply(layer, x))


WRONG = {
    "router": (np.zeros((63, 6), np.float32), "router: expected shape"),
    "down": (np.zeros((6, 47, 40), np.float32), "down: expected shape"),
    "gate_up": (np.zeros((6, 64, 95), np.float32), "gate_up: expected an even"),
    "gate_up_bias": (np.zeros((6, 48), np.float32), "gate_up_bias: expected shape"),
    "down_bias": (np.zeros(40, np.float32), "down_bias: expected shape"),
    "router_bias": (np.zeros(5, np.float32), "router_bias: expected shape"),
    "selection_bias": (np.zeros(5, np.float32), "selection_bias: expected shape"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("layer", [W4A8MoE.from_arrays, MoE])
def test_shapes_that_do_not_belong_together_are_refused(name, layer):
    parts = arrays() | {name: WRONG[name][0]}
    three = [parts.pop(n) for n in ("router", "gate_up", "down")]
    with pytest.raises(ValueError, match=WRONG[name][1]):
        layer(*three, MoEConfig(top_k=2), **parts)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"score": "tanh"}, ValueError),
        ({"activation": "relu"}, ValueError),
        ({"form": "sorted"}, ValueError),
        ({"block": 64}, ValueError),
        ({"dtype": np.float64}, TypeError),
    ],
)
def test_options_that_do_not_exist_are_refused(options, error):
    with pytest.raises(error, match=next(iter(options))):
        MoEConfig(top_k=2, **options)


def test_what_else_is_refused():
    parts = arrays()
    three = [parts[n] for n in ("router", "gate_up", "down")]
    with pytest.raises(ValueError, match="top_k: expected an int from 1 to E = 6"):
        W4A8MoE.from_arrays(*three, MoEConfig(top_k=7))
    with pytest.raises(TypeError, match="gate_up: expected a QuantizedWeight"):
        W4A8MoE(*three, MoEConfig(top_k=2))
    with pytest.raises(TypeError, match=r"layer: expected jax_w4a8\.layers\.moe\.MoE"):
        W4A8MoE.from_float(nnx.Linear(4, 4, rngs=nnx.Rngs(0)))
    with pytest.raises(ValueError, match=r"x: expected shape \[\.\.\., 64\]"):
        make(MoEConfig(top_k=2))(np.zeros((3, 63), np.float32))
    three[1] = np.full_like(three[1], np.inf)
    with pytest.raises(ValueError, match="kernel: expected finite weights"):
        W4A8MoE.from_arrays(*three, MoEConfig(top_k=2))


def test_the_package_offers_it():
    assert jax_w4a8.W4A8MoE is W4A8MoE
