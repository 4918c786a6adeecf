"""W4A8Dense under NNX's transformations, in training, and through checkpoints."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint
import pytest
from flax import nnx

import jax_w4a8
from jax_w4a8.layers import PackedWeight, W4A8Dense
from tests.layers import exact

K = 64


def dense(seed=0, n=K):
    return W4A8Dense(jax_w4a8.quantize(exact.kernel(K, n, seed)), exact.bias(n))


@pytest.fixture(scope="module")
def stacked():
    """Three layers in one, made by vmap."""
    kernels = jnp.stack([exact.kernel(K, K, seed) / 8 for seed in range(3)])
    biases = jnp.stack([exact.bias(K, seed=seed) for seed in range(3)])
    return nnx.vmap(lambda k, b: W4A8Dense(jax_w4a8.quantize(k), b))(kernels, biases)


def layer_of(stacked, i):
    graph, state = nnx.split(stacked)
    return nnx.merge(graph, jax.tree.map(lambda a: a[i], state))


def test_jit_equals_eager():
    layer, x = dense(), exact.inputs(3, K)
    np.testing.assert_array_equal(nnx.jit(lambda m, x: m(x))(layer, x), layer(x))


def test_split_and_merge():
    layer, x = dense(), exact.inputs(3, K)
    graph, bias, packed = nnx.split(layer, nnx.Param, PackedWeight)
    np.testing.assert_array_equal(nnx.merge(graph, bias, packed)(x), layer(x))


def test_eval_shape_makes_the_same_structure():
    abstract = nnx.eval_shape(dense)
    assert jax.tree.structure(nnx.state(abstract)) == jax.tree.structure(nnx.state(dense()))
    y = nnx.eval_shape(lambda layer, x: layer(x), abstract, jnp.ones((2, K)))
    assert (y.shape, y.dtype) == ((2, K), jnp.float32)


def test_gradients_of_bias_and_inputs():
    layer, x, g = dense(n=24), exact.inputs(3, K), exact.inputs(3, 24, seed=5)

    def loss(layer, x):
        return jnp.sum(layer(x) * g)

    of_layer, of_x = nnx.grad(loss, argnums=(0, 1))(layer, x)
    assert list(of_layer) == ["bias"]
    np.testing.assert_array_equal(of_layer["bias"][...], g.sum(axis=0))
    np.testing.assert_array_equal(of_x, exact.product(g, exact.kernel(K, 24).T))


def test_scan_over_layers_equals_a_loop(stacked):
    x = exact.inputs(3, K)

    @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
    def forward(layer, x):
        return jnp.round(layer(x) / 16)

    looped = x
    for i in range(3):
        looped = jnp.round(layer_of(stacked, i)(looped) / 16)
    np.testing.assert_array_equal(forward(stacked, x), looped)


def test_vmap_over_layers_equals_a_loop(stacked):
    x = exact.inputs(3, 5, K)
    together = nnx.vmap(lambda layer, x: layer(x))(stacked, x)
    for i in range(3):
        np.testing.assert_array_equal(together[i], layer_of(stacked, i)(x[i]))


def test_stacked_weights_are_for_scan_and_vmap_only(stacked):
    again = W4A8Dense(stacked.kernel.get_value(), stacked.bias[...])
    x = exact.inputs(3, 5, K)
    together = nnx.vmap(lambda layer, x: layer(x))(again, x)
    np.testing.assert_array_equal(together, nnx.vmap(lambda m, x: m(x))(stacked, x))
    with pytest.raises(ValueError, match="vmap over the leading dimensions"):
        again(x)


def test_remat():
    layer, x = dense(), exact.inputs(3, K)
    loss = nnx.remat(lambda layer, x: jnp.sum(layer(x)))
    of_x = nnx.grad(loss, argnums=1)(layer, x)
    np.testing.assert_array_equal(of_x, exact.product(np.ones((3, K)), exact.kernel(K, K).T))


def test_a_training_step_leaves_no_tracer_and_the_codes_alone():
    class Model(nnx.Module):
        def __init__(self, rngs):
            self.frozen = dense()
            self.head = nnx.Linear(K, 2, rngs=rngs)

        def __call__(self, x):
            return self.head(jax.nn.relu(self.frozen(x)) / 64)

    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.sgd(2.0**-4), wrt=nnx.Param)
    before = jax.tree.map(np.asarray, nnx.state(model, PackedWeight))
    x = exact.inputs(8, K)

    @nnx.jit
    def step(model, optimizer, x):
        loss, grads = nnx.value_and_grad(lambda m: jnp.mean(m(x) ** 2))(model)
        optimizer.update(model, grads)
        return loss

    losses = [float(step(model, optimizer, x / 16)) for _ in range(5)]
    assert losses[-1] < losses[0]
    leaves = jax.tree.leaves(nnx.state((model, optimizer)))
    assert not any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
    assert not np.array_equal(model.frozen.bias[...], exact.bias(K))
    jax.tree.map(np.testing.assert_array_equal, before, nnx.state(model, PackedWeight))


def test_eager_gradients_leave_no_tracer():
    layer = dense()
    nnx.grad(lambda m: jnp.sum(m(exact.inputs(3, K))))(layer)
    assert not any(isinstance(a, jax.core.Tracer) for a in jax.tree.leaves(nnx.state(layer)))


def test_orbax_brings_the_layer_back(tmp_path):
    layer, x = dense(), exact.inputs(3, K)
    graph, state = nnx.split(layer)
    with orbax.checkpoint.StandardCheckpointer() as checkpointer:
        checkpointer.save(tmp_path / "layer", state)
        checkpointer.wait_until_finished()
        abstract = nnx.state(nnx.eval_shape(dense))
        restored = checkpointer.restore(tmp_path / "layer", abstract)
    again = nnx.merge(graph, restored)
    assert isinstance(again.kernel.get_value(), jax_w4a8.QuantizedWeight)
    np.testing.assert_array_equal(again.kernel.get_value().codes, layer.kernel.get_value().codes)
    np.testing.assert_array_equal(again(x), layer(x))
