"""One matrix: how a backend comes to be chosen, for each form of a layer's products."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import jax_w4a8
from jax_w4a8 import backends
from jax_w4a8.backends import host
from jax_w4a8.backends.extension import Extension
from jax_w4a8.layers import W4A8Dense
from jax_w4a8.layers.experts import MoEConfig
from jax_w4a8.layers.moe import W4A8MoE
from tests.layers import exact, moe_loop

# Ways in -> what serves: the name of a backend, or a part of the error.
CHOICES = {
    "auto": "host",
    "xla": "xla",
    "host": "host",
    "auto, extension missing": "xla",
    "host, extension missing": "the extension jax_w4a8._host is not built; install",
    "auto, kernel refuses": "xla",
    "host, kernel refuses": "no kernel for this shape",
}
KINDS = {"dense": "dense", "contiguous": "grouped", "masked": "masked"}


@pytest.fixture(params=CHOICES)
def choice(request, monkeypatch):
    """Sets the process up for one way in; what serves."""
    name, _, state = request.param.partition(", ")
    if state == "extension missing":
        reason = "the extension jax_w4a8._host is not built; install jax_w4a8 with a compiler"
        monkeypatch.setattr(host, "_extension", lambda: Extension(None, reason))
    elif state == "kernel refuses":
        monkeypatch.setattr(
            host.HostBackend, "refuses", lambda self, product: "no kernel for this shape"
        )
    with jax_w4a8.use_backend(name):
        yield CHOICES[request.param]


def layer_of(form):
    """A layer, tokens for it, and the right result in float64."""
    if form == "dense":
        linear = nnx.Linear(64, 24, rngs=nnx.Rngs(0))
        linear.kernel[...] = jnp.asarray(exact.kernel(64, 24))
        x = exact.inputs(20, 64)
        return W4A8Dense.from_dense(linear), x, exact.product(x, exact.kernel(64, 24))
    rng = np.random.default_rng(0)
    router = rng.normal(size=(64, 5)).astype(np.float32)
    gate_up = rng.normal(size=(5, 64, 96)).astype(np.float32) / 8
    down = rng.normal(size=(5, 48, 24)).astype(np.float32) / 7
    layer = W4A8MoE.from_arrays(router, gate_up, down, MoEConfig(top_k=2, form=form))
    x = rng.normal(size=(20, 64)).astype(np.float32)
    return layer, x, moe_loop.moe(layer, x)


@pytest.mark.parametrize("form", KINDS)
def test_who_serves_and_what_comes_out(form, choice):
    layer, x, expected = layer_of(form)
    graph, state = nnx.split(layer)
    traced = jax.jit(lambda s, x: nnx.merge(graph, s)(x)).trace(state, x)
    fails = choice not in backends.NAMES
    with pytest.raises(jax_w4a8.BackendError, match=choice) if fails else contextlib.nullcontext():
        lowered = traced.lower()
    if fails:
        return
    assert (f"jax_w4a8_host_{KINDS[form]}_v1" in lowered.as_text()) == (choice == "host")
    y = lowered.compile()(state, x)
    np.testing.assert_allclose(y, expected, rtol=0, atol=2e-5 * np.abs(expected).max())
