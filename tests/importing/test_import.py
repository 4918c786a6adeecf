"""What ``import jax_w4a8`` costs and needs, in an environment that holds nothing but a PATH."""

import subprocess
import sys

import pytest

import jax_w4a8

BARE = {"PATH": "/usr/bin:/bin"}


def run(script):
    """Runs ``script`` in a new interpreter without an environment; returns what it prints."""
    script = f"import sys; sys.path[:] = {sys.path!r}\n{script}"
    done = subprocess.run(
        [sys.executable, "-c", script], env=BARE, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_import_loads_neither_flax_nor_an_extension_nor_the_layers():
    script = """
import jax_w4a8
optional = ("flax", "optax", "orbax", "safetensors", "matplotlib", "tokenizers")
print(sorted(m for m in sys.modules if m.split(".")[0] in optional))
print(sorted(m for m in sys.modules if m.startswith(("jax_w4a8._", "jax_w4a8.l", "jax_w4a8.cli"))))
"""
    assert run(script).split("\n")[:2] == ["[]", "[]"]


def test_import_reads_no_variable_of_the_package_and_starts_no_platform():
    script = """
import os, jax
read = []
class Recording(dict):
    def __getitem__(self, key):
        read.append(key)
        return super().__getitem__(key)
    def get(self, key, default=None):
        read.append(key)
        return super().get(key, default)
    def __contains__(self, key):
        read.append(key)
        return super().__contains__(key)
os.environ = Recording(os.environ)
os.getenv = os.environ.get
import jax_w4a8
print([key for key in read if "W4A8" in key])
from jax._src import xla_bridge
print(xla_bridge.backends_are_initialized())
jax_w4a8.backends.current()
print([key for key in read if "W4A8" in key])
"""
    assert run(script).split("\n")[:3] == ["[]", "False", "['JAX_W4A8_BACKEND']"]


def test_without_flax_the_products_work_and_a_layer_says_what_is_missing():
    script = """
sys.modules["flax"] = None
import jax_w4a8, numpy
w = jax_w4a8.quantize(numpy.ones((32, 8), "float32"))
print(jax_w4a8.dot(numpy.ones((1, 32), "float32"), w)[0, 0])
try:
    jax_w4a8.W4A8Dense
except ImportError as error:
    print("flax" in str(error))
"""
    assert run(script).split() == ["32.0", "True"]


def test_an_attribute_that_is_not_there():
    with pytest.raises(AttributeError, match=r"^module 'jax_w4a8' has no attribute 'dott'$"):
        _ = jax_w4a8.dott


def test_everything_that_is_listed_is_there():
    assert all(getattr(jax_w4a8, name) is not None for name in jax_w4a8.__all__)
    assert set(jax_w4a8.__all__) <= set(dir(jax_w4a8)) | set(jax_w4a8._LAYERS)


def test_import_takes_a_tenth_of_a_second_beyond_jax():
    """Beyond ``import jax`` in the same process; the best of several, as others share the CPU."""
    script = """
import time, jax
start = time.perf_counter()
import jax_w4a8
print(time.perf_counter() - start)
"""
    best = min(float(run(script)) for _ in range(3))
    assert best <= 0.1, best
