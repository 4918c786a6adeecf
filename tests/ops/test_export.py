"""``jax.export``: a program is reloaded in a fresh process, with and without this package."""

import os
import subprocess
import sys

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import jax_w4a8
from jax_w4a8 import backends

K, N = 48, 8
X = np.random.default_rng(0).choice([-1.0, 0.5, 2.0], (3, K)).astype(np.float32)
KERNEL = np.random.default_rng(1).choice([-1.0, 1.0], (K, N)).astype(np.float32)


def export(f, *operands, platforms=None):
    exporting = jax.export.export(
        jax.jit(f), platforms=platforms, disabled_checks=jax_w4a8.export_safety_checks()
    )
    return exporting(*operands)


def fresh_process(script, *arguments):
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )


LOAD = """
import pathlib, sys
import numpy as np
import jax, jax.export
folder = pathlib.Path(sys.argv[1])
x = np.load(folder / "x.npy")
exported = jax.export.deserialize(bytearray((folder / "exported").read_bytes()))
"""


@pytest.fixture
def saved(tmp_path, backend):
    """A folder with an exported program, its operand, and the kind of backend that computes it."""
    w = jax_w4a8.quantize(KERNEL)
    exported = export(lambda x: jax_w4a8.dot(x, w), X)
    (tmp_path / "exported").write_bytes(exported.serialize())
    np.save(tmp_path / "x.npy", X)
    return tmp_path


def test_in_a_fresh_process(saved, backend):
    script = f"""{LOAD}
import jax_w4a8
jax_w4a8.load_kernels()
np.save(folder / "y.npy", exported.call(x))
"""
    done = fresh_process(script, saved)
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(saved / "y.npy"), X @ KERNEL)


def test_in_a_fresh_process_without_the_package(saved, backend):
    script = f"""{LOAD}
try:
    print((exported.call(x) == np.load(folder / "y.npy")).all())
except jax.errors.JaxRuntimeError as error:
    print(error)
print("jax_w4a8" in sys.modules)
"""
    np.save(saved / "y.npy", X @ KERNEL)
    done = fresh_process(script, saved)
    outcome, imported = done.stdout.splitlines()
    assert imported == "False"
    if backend == "xla":
        assert outcome == "True"
    else:
        assert "No FFI handler registered for jax_w4a8_host_dense_v1" in outcome


def test_weights_and_quantised_activations_in_the_signature(tmp_path, backend):
    w = jax_w4a8.quantize(KERNEL)
    a = jax_w4a8.quantize_activation(X.astype(jnp.bfloat16), block=32)

    def f(a, w):
        return jax_w4a8.dot(a, w), a, w

    data = export(f, a, w).serialize()
    y, again, weight = jax.export.deserialize(data).call(a, w)
    np.testing.assert_array_equal(np.asarray(y, np.float32), X @ KERNEL)
    assert (again.block, again.dtype) == (32, jnp.bfloat16)
    assert repr(weight) == repr(w)
    np.testing.assert_array_equal(weight.dequantize(), KERNEL)


def test_the_gradient_is_exported_too(backend):
    w = jax_w4a8.quantize(KERNEL)
    exported = jax.export.export(
        jax.jit(lambda x: jax_w4a8.dot(x, w)), disabled_checks=jax_w4a8.export_safety_checks()
    )(X)
    again = jax.export.deserialize(exported.serialize(vjp_order=1))
    y, pull = jax.vjp(again.call, X)
    np.testing.assert_array_equal(y, X @ KERNEL)
    np.testing.assert_array_equal(pull(jnp.ones_like(y))[0], np.ones((3, N)) @ KERNEL.T)


def test_without_the_checks_the_error_names_the_target():
    w = jax_w4a8.quantize(KERNEL)
    with jax_w4a8.use_backend("host"):
        exported = jax.export.export(jax.jit(lambda x: jax_w4a8.dot(x, w)))
        with pytest.raises(ValueError, match="@jax_w4a8_host_dense_v1"):
            exported(X)


@pytest.mark.parametrize("name", [n for n in backends.NAMES if "cuda" in backends.get(n).platforms])
def test_for_a_gpu_from_a_host_without_one(name):
    w = jax_w4a8.quantize(KERNEL)
    with jax_w4a8.use_backend(name):
        exported = export(lambda x: jax_w4a8.dot(x, w), X, platforms=["cuda"])
    again = jax.export.deserialize(exported.serialize())
    assert again.platforms == ("cuda",)
    assert f"@jax_w4a8_{name}_dense_v1" in again.mlir_module()


def test_for_several_devices(backend):
    """How a product is split is not part of what is exported; the result is right all the same."""
    mesh = jax.make_mesh((4,), ("a",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("a"))
    x = jax.device_put(np.concatenate([X, X, X, X]), spec)
    w = jax_w4a8.quantize(KERNEL)
    exported = export(lambda x: jax_w4a8.dot(x, w), x)
    assert "CustomSPMDPartitioning" not in exported.mlir_module()
    again = jax.export.deserialize(exported.serialize())
    np.testing.assert_array_equal(again.call(x), np.asarray(x) @ KERNEL)


def test_the_checks_name_every_target_of_the_host_extension():
    module = backends.host._extension().module
    checks = {str(check) for check in jax_w4a8.export_safety_checks()}
    for target in module.registrations():
        assert any(target in check for check in checks), target


def test_what_load_kernels_says():
    said = jax_w4a8.load_kernels()
    assert list(said) == list(backends.NAMES)
    assert said["host"] is None
    assert said["xla"] is None
