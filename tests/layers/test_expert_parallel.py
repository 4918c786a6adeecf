"""Experts over eight simulated devices: single-device numbers, collectives, skew, memory."""

import collections
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import jax_w4a8
from jax_w4a8.layers.expert_parallel import expert_parallel, shard_experts
from jax_w4a8.layers.experts import MoEConfig
from jax_w4a8.layers.moe import W4A8MoE
from jax_w4a8.weights import QuantizedWeight

MESHES = {
    "experts": {"expert": 8},
    "experts and tensor": {"expert": 4, "tensor": 2},
    "mostly tensor": {"expert": 2, "tensor": 4},
    "data and experts": {"data": 2, "expert": 4},
    "all three": {"data": 2, "expert": 2, "tensor": 2},
}
COLLECTIVES = r"(all-to-all|all-gather|all-reduce|collective-permute|reduce-scatter)(?:-start)?\("


def mesh_of(name, kind=AxisType.Auto):
    axes = MESHES[name]
    types = (kind,) * len(axes)
    return jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=types)


def make(config=None, biases=True, router_bias=None, hidden=128):
    rng = np.random.default_rng(0)
    normal = lambda *s: rng.normal(size=s).astype(np.float32)  # noqa: E731
    others = {"gate_up_bias": normal(8, 2 * hidden), "down_bias": normal(8, 40)}
    return W4A8MoE.from_arrays(
        normal(64, 8),
        normal(8, 64, 2 * hidden) / 8,
        normal(8, hidden, 40) / 8,
        config or MoEConfig(top_k=2, block=32),
        router_bias=router_bias,
        **(others if biases else {}),
    )


def tokens(count, dtype=np.float32):
    return np.random.default_rng(1).normal(size=(count, 64)).astype(dtype)


apply = nnx.jit(lambda layer, x: layer(x))


def parallel(layer, mesh, **options):
    """The layer's function of its state and tokens, jitted."""
    tensor = "tensor" if "tensor" in mesh.axis_names else None
    shard_experts(layer, mesh, tensor_axis=tensor)
    graph, state = nnx.split(layer)

    @jax.jit
    def f(state, x):
        return expert_parallel(nnx.merge(graph, state), x, mesh=mesh, tensor_axis=tensor, **options)

    return f, state


def close(y, expected, tolerance=2e-6):
    scale = np.abs(np.asarray(expected, np.float64)).max()
    np.testing.assert_allclose(
        np.asarray(y, np.float64), np.asarray(expected, np.float64), rtol=0, atol=tolerance * scale
    )


@pytest.mark.parametrize(
    ("name", "backend"), [*((name, "host") for name in MESHES), ("all three", "xla")]
)
def test_equals_the_single_device_and_weights_stay_where_they_are(name, backend):
    mesh, layer, x = mesh_of(name), make(), tokens(64)
    spread = PartitionSpec(tuple(a for a in mesh.axis_names if a != "tensor"))
    with jax_w4a8.use_backend(backend):
        expected = apply(layer, x)
        f, state = parallel(layer, mesh)
        x = jax.device_put(x, NamedSharding(mesh, spread))
        compiled = f.lower(state, x).compile()
    close(compiled(state, x), expected)

    # Rows, ids and results travel; devices agree on the rounds; one sum over the tensor axis.
    text, split = compiled.as_text(), mesh.shape.get("tensor", 1)
    found = collections.Counter(re.findall(COLLECTIVES, text))
    assert found == {"all-to-all": 3, "all-reduce": 2 if split > 1 else 1}
    # What holds codes and scales is uint8, and no device sees more of them than its share.
    share = [8 // mesh.shape["expert"], 256 // split, 32]
    shapes = [list(map(int, s.split(","))) for s in re.findall(r"u8\[([\d,]+)\]", text)]
    assert share in shapes
    assert max(map(math.prod, shapes)) <= math.prod(share)


@pytest.mark.parametrize(
    "config",
    [
        MoEConfig(top_k=3, form="masked", score="sigmoid", route_scale=2.0),
        MoEConfig(top_k=1, form="contiguous", interleaved=True, activation="clamped_swiglu"),
    ],
    ids=["masked", "contiguous"],
)
def test_other_configurations(config):
    layer, x = make(config, hidden=256), tokens(24)
    expected = apply(layer, x)
    f, state = parallel(layer, mesh_of("experts and tensor"))
    close(f(state, x), expected)


@pytest.mark.parametrize("count", [0, 1, 13])
def test_tokens_need_not_divide_by_the_devices(count):
    layer, x = make(biases=False), tokens(count)
    expected = apply(layer, x)
    f, state = parallel(layer, mesh_of("experts"))
    y = f(state, x)
    assert y.shape == (count, 40)
    if count:
        close(y, expected)


@pytest.mark.parametrize("shape", [(13,), (2, 32), (8, 2)])
def test_a_mesh_of_explicit_axes(shape):
    layer, x = make(), tokens(math.prod(shape))
    expected = apply(layer, x)
    f, state = parallel(layer, mesh_of("experts and tensor", AxisType.Explicit))
    y = f(state, x.reshape(*shape, 64))
    assert y.shape == (*shape, 40)
    close(y.reshape(-1, 40), expected)


def test_bfloat16_gives_the_same_bits_over_experts():
    x = jnp.asarray(tokens(64), jnp.bfloat16)
    layer = make()
    expected = apply(layer, x)
    f, state = parallel(layer, mesh_of("experts"))
    np.testing.assert_array_equal(f(state, x), expected)


SKEWS = {
    "to one expert": [0, 0, 0, 50, 0, 0, 0, 0],
    "to one device": [60, 50, 0, 0, 0, 0, 0, 0],
    "all but one": [0, -50, 0, 0, 0, 0, 0, 0],
}


@pytest.mark.parametrize("capacity", [1, 5, None])
def test_full_buffers_take_more_rounds_and_drop_nothing(capacity):
    layer, x = make(router_bias=np.zeros(8, np.float32)), tokens(64)
    expected = {}
    for name, bias in SKEWS.items():
        layer.router_bias.set_value(jnp.asarray(bias, jnp.float32))
        expected[name] = apply(layer, x)
    mesh = mesh_of("data and experts")
    f, state = parallel(layer, mesh, capacity=capacity)
    for name, bias in SKEWS.items():
        place = NamedSharding(mesh, PartitionSpec())
        state["router_bias"].set_value(jax.device_put(jnp.asarray(bias, jnp.float32), place))
        y = f(state, x)
        close(y, expected[name])
        assert np.all(np.any(np.asarray(y), axis=-1))


def test_a_nan_stays_in_its_token():
    layer, x = make(), tokens(64)
    expected = np.array(apply(layer, x))
    x[5, 3] = np.nan
    f, state = parallel(layer, mesh_of("experts and tensor"))
    y = np.asarray(f(state, x))
    assert np.isnan(y[5]).all()
    rest = np.arange(64) != 5
    close(y[rest], expected[rest])


def test_memory_does_not_grow_with_the_skew():
    """As documented: buffers of P * capacity rows, whatever the routing; a round at a time."""
    capacity, x = 32, tokens(4096)
    f, state = parallel(make(biases=False), mesh_of("experts"), capacity=capacity)
    with jax_w4a8.use_backend("host"):
        peak = f.lower(state, x).compile().memory_analysis().temp_size_in_bytes
    # Rows sent and received, their results and what experts make of them; the device's own tokens.
    # One exchange that is safe for every skew would hold 8192 rows, 32 times as many.
    rows, widths = 8 * capacity, 2 * 64 + 256 + 128 + 3 * 40
    own = 4096 // 8 * (64 + 2 * 40)
    assert 4 * rows * 2 * 64 < peak < 4 * (rows * widths + own)


def test_gradients_equal_the_single_device():
    layer, x, mesh, tensor = make(), tokens(32), mesh_of("all three"), "tensor"
    probe = np.random.default_rng(2).normal(size=(32, 40)).astype(np.float32)

    @nnx.jit
    @nnx.grad(argnums=(0, 1))
    def single(layer, x):
        return jnp.sum(layer(x) * probe)

    @nnx.jit
    @nnx.grad(argnums=(0, 1))
    def spread(layer, x):
        y = expert_parallel(layer, x, mesh=mesh, tensor_axis=tensor, capacity=2)
        return jnp.sum(y * probe)

    expected, expected_x = single(layer, x)
    shard_experts(layer, mesh, tensor_axis=tensor)
    got, got_x = spread(layer, x)
    close(got_x, expected_x, 1e-5)
    for key in ("router", "down_bias"):
        close(got[key][...], expected[key][...], 1e-5)
    gate_up = np.asarray(expected["gate_up_bias"][...]).reshape(8, 2, -1)
    close(got["gate_up_bias"][...], gate_up.swapaxes(1, 2).reshape(8, -1), 1e-5)


def test_shard_experts_leaves_the_layers_numbers_alone():
    layer, x = make(), tokens(9)
    expected = apply(layer, x)
    shard_experts(layer, mesh_of("experts and tensor"), tensor_axis="tensor")
    assert layer.config.interleaved
    gate_up = layer.gate_up.get_value()
    assert gate_up.codes.sharding.shard_shape(gate_up.codes.shape) == (2, 128, 32)
    close(apply(layer, x), expected)


def with_layout(layer, layout):
    for variable in (layer.gate_up, layer.down):
        w = variable.get_value()
        variable.set_value(QuantizedWeight.from_arrays(w.arrays, k=w.k, n=w.n, layout=layout))
    return layer


REFUSED = {
    "expert_axis: expected an axis of the mesh": lambda m: shard_experts(
        make(), m, expert_axis="experts"
    ),
    "tensor_axis: expected an axis of the mesh": lambda m: shard_experts(
        make(), m, tensor_axis="model"
    ),
    "must be whole activation blocks": lambda m: shard_experts(
        make(MoEConfig(top_k=2)), m, tensor_axis="tensor"
    ),
    "got block='row'": lambda m: shard_experts(
        make(MoEConfig(top_k=2, block="row")), m, tensor_axis="tensor"
    ),
    "plain layout": lambda m: shard_experts(with_layout(make(), "sm90"), m, tensor_axis="tensor"),
    "expected gate and up to alternate": lambda m: expert_parallel(
        make(), tokens(8), mesh=m, tensor_axis="tensor"
    ),
    "capacity: expected a positive number": lambda m: expert_parallel(
        make(), tokens(8), mesh=m, capacity=0
    ),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_is_refused(message):
    with pytest.raises(ValueError, match=message):
        REFUSED[message](mesh_of("experts and tensor"))


def test_experts_that_the_devices_do_not_divide_are_refused():
    mesh = jax.make_mesh((3,), ("expert",), axis_types=(AxisType.Auto,), devices=jax.devices()[:3])
    with pytest.raises(ValueError, match="expected a number of experts that 3 devices"):
        shard_experts(make(), mesh)
    with pytest.raises(TypeError, match="layer: expected a W4A8MoE"):
        shard_experts(nnx.Linear(4, 4, rngs=nnx.Rngs(0)), mesh)
