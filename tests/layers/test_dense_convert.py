"""The walkers that quantise and pack the layers of a whole model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jax_w4a8
from jax_w4a8.layers import PackedWeight, W4A8Dense, convert, prepack_layers, quantize_layers
from tests.layers import exact

K = 32


class Model(nnx.Module):
    """Linear layers in every kind of container, one of them in two places."""

    def __init__(self, seed=0):
        def linear():
            layer = nnx.Linear(K, K, rngs=rngs)
            layer.kernel[...] = jnp.sign(layer.kernel[...])
            return layer

        rngs = nnx.Rngs(seed)
        self.up = linear()
        self.blocks = nnx.List([linear(), linear()])
        self.named = nnx.Dict(first=linear())
        self.plain = nnx.data({"x": [linear()]})
        self.steps = nnx.Sequential(linear(), nnx.relu)
        self.norm = nnx.LayerNorm(K, rngs=rngs)
        self.tied = self.up
        self.lm_head = linear()

    def __call__(self, x):
        for layer in (self.up, *self.blocks, self.named["first"], self.plain["x"][0], self.steps):
            x = jnp.clip(jnp.round(layer(x)), -15, 15)
        return self.lm_head(self.tied(x))


PATHS = {
    ("up",),
    ("tied",),
    ("blocks", 0),
    ("blocks", 1),
    ("named", "first"),
    ("plain", "x", 0),
    ("steps", "layers", 0),
    ("lm_head",),
}


def at(model, path):
    for key in path:
        model = getattr(model, key) if isinstance(key, str) and hasattr(model, key) else model[key]
    return model


def test_every_linear_layer_is_swapped():
    model, x = Model(), exact.inputs(3, K)
    before = model(x)
    assert quantize_layers(model) is model
    assert all(type(at(model, path)) is W4A8Dense for path in PATHS)
    assert type(model.norm) is nnx.LayerNorm
    # Kernels of +-1 and inputs that E4M3 holds: FP4 changes nothing until the last two products.
    x = exact.inputs(3, K)
    np.testing.assert_array_equal(model.up(x), Model().up(x))
    assert model(x).shape == before.shape


def test_where_is_given_the_path_and_decides():
    seen = set()

    def where(path):
        seen.add(path)
        return "blocks" in path and path[-1] == 1

    model = quantize_layers(Model(), where)
    assert seen == PATHS
    swapped = {path for path in PATHS if type(at(model, path)) is W4A8Dense}
    assert swapped == {("blocks", 1)}


def test_a_layer_in_two_places_stays_one_layer():
    model = quantize_layers(Model(), where=lambda path: path == ("tied",))
    assert type(model.up) is W4A8Dense
    assert model.up is model.tied


def test_options_reach_the_layers():
    kernel = jnp.full((K, 4), 7.0)
    model = nnx.Sequential(nnx.Linear(K, 4, rngs=nnx.Rngs(0)))
    model.layers[0].kernel[...] = kernel
    quantize_layers(model, block="row", rule="ceil")
    assert model.layers[0].block == "row"
    # amax 7: the ceil rule takes scale 2 and the value 8, the floor rule scale 1 and the value 6.
    np.testing.assert_array_equal(model.layers[0].kernel.get_value().dequantize(), kernel + 1)


def test_a_quantised_model_is_quantised_no_further():
    model = quantize_layers(Model())
    with pytest.raises(ValueError, match="selected none of 0; the model holds none"):
        quantize_layers(model)


def test_subclasses_that_compute_something_else_stay():
    class Doubling(nnx.Linear):
        def __call__(self, inputs):
            return 2 * super().__call__(inputs)

    rngs = nnx.Rngs(0)
    model = nnx.Sequential(Doubling(K, K, rngs=rngs), nnx.Linear(K, K, rngs=rngs))
    quantize_layers(model)
    assert [type(layer) for layer in model.layers] == [Doubling, W4A8Dense]


def test_the_peak_is_the_model_and_one_layer(monkeypatch):
    """Bytes of live arrays each time that a layer has been quantised, its float kernel alive."""
    width, count = 256, 6
    rngs = nnx.Rngs(0)
    model = nnx.Sequential(
        *(nnx.Linear(width, width, use_bias=False, rngs=rngs) for _ in range(count))
    )
    others = live_bytes() - count * 4 * width * width
    observed = []

    def from_dense(layer, **options):
        dense = original(layer, **options)
        observed.append(live_bytes() - others)
        return dense

    original = W4A8Dense.from_dense
    monkeypatch.setattr(convert.W4A8Dense, "from_dense", from_dense)
    quantize_layers(model)
    floats, packed = 4 * width * width, width * width // 2 + width * width // 32
    assert len(observed) == count
    for done, peak in enumerate(observed, start=1):
        assert peak == (count - done + 1) * floats + done * packed
    assert live_bytes() - others == count * packed


def live_bytes():
    return sum(array.nbytes for array in jax.live_arrays())


def test_inside_eval_shape_for_restoring_a_checkpoint():
    abstract = nnx.eval_shape(lambda: quantize_layers(Model()))
    concrete = nnx.state(quantize_layers(Model()))
    assert jax.tree.structure(nnx.state(abstract)) == jax.tree.structure(concrete)


def test_prepack_brings_weights_into_the_layout_of_this_machine():
    model, x = quantize_layers(Model()), exact.inputs(3, K)
    before = model(x)
    packed = jax_w4a8.prepack(model.up.kernel.get_value())
    assert prepack_layers(model) is model
    for path, node in nnx.iter_graph(model):
        if isinstance(node, PackedWeight):
            assert node.get_value().layout == packed.layout, path
    np.testing.assert_array_equal(model(x), before)


def _broken():
    model = Model()
    model.blocks[1].kernel[...] = jnp.full((K, K), jnp.inf)
    return model


def _in_a_tuple():
    model = nnx.Module()
    model.pair = nnx.data((nnx.Linear(K, K, rngs=nnx.Rngs(0)),))
    return model


REFUSED = {
    "a layer": (
        lambda: quantize_layers(nnx.Linear(K, K, rngs=nnx.Rngs(0))),
        TypeError,
        r"model: expected an nnx.Module that holds nnx.Linear layers, got Linear; "
        r"W4A8Dense.from_dense\(linear\) quantises a single layer",
    ),
    "not a model": (
        lambda: quantize_layers({"kernel": jnp.ones((K, K))}),
        TypeError,
        "model: expected an nnx.Module that holds nnx.Linear layers, got dict",
    ),
    "nothing matched": (
        lambda: quantize_layers(Model(), lambda path: "mlp" in path),
        ValueError,
        r"where: expected to select an nnx.Linear, selected none of 7 .*blocks/0.*, \.\.\.",
    ),
    "infinity": (
        lambda: quantize_layers(_broken()),
        ValueError,
        "layer 'blocks/1': kernel: expected finite weights, got NaN or infinity",
    ),
    "tuple": (
        lambda: quantize_layers(_in_a_tuple()),
        TypeError,
        "layer 'pair/0': expected a mutable owner, got a tuple; use nnx.List",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    call, kind, message = REFUSED[case]
    with pytest.raises(kind, match=message):
        call()
