"""``use_backend`` and ``JAX_W4A8_BACKEND``: which backend a product takes, and when it is read."""

import os
import subprocess
import sys
import threading
import types

import jax
import jax.numpy as jnp
import pytest

import jax_w4a8
from jax_w4a8 import BackendError, backends
from jax_w4a8.backends import selection

X = jnp.ones((3, 64), jnp.float32)
W = jax_w4a8.quantize(jnp.ones((64, 8), jnp.float32))


@pytest.fixture(autouse=True)
def _restore_the_process():
    before = backends.current()
    yield
    jax_w4a8.use_backend(before)


def lowered(platform="cpu"):
    """The StableHLO of a product under the selected backend."""
    return jax.jit(lambda x: jax_w4a8.dot(x, W)).trace(X).lower(lowering_platforms=(platform,))


def takes():
    return "host" if "@jax_w4a8_host_dense_v1" in lowered().as_text() else "xla"


def test_for_the_process():
    for name in ("xla", "host"):
        jax_w4a8.use_backend(name)
        assert (backends.current(), takes()) == (name, name)


def test_as_a_context_manager():
    jax_w4a8.use_backend("xla")
    with jax_w4a8.use_backend("host"):
        assert (backends.current(), takes()) == ("host", "host")
    assert (backends.current(), takes()) == ("xla", "xla")


def test_nested():
    with jax_w4a8.use_backend("xla"):
        with jax_w4a8.use_backend("host"), jax_w4a8.use_backend("auto"):
            assert backends.current() == "auto"
        assert takes() == "xla"


def test_an_error_inside_the_block_restores_it():
    before = backends.current()
    with pytest.raises(ZeroDivisionError), jax_w4a8.use_backend("xla"):
        raise ZeroDivisionError
    assert backends.current() == before


def test_one_object_entered_twice():
    jax_w4a8.use_backend("host")
    scope = jax_w4a8.use_backend("xla")
    for _ in range(2):
        with scope, scope:
            assert backends.current() == "xla"
        assert backends.current() == "host"


def test_a_block_is_for_its_own_thread():
    jax_w4a8.use_backend("host")
    seen = []
    with jax_w4a8.use_backend("xla"):
        thread = threading.Thread(target=lambda: seen.append((backends.current(), takes())))
        thread.start()
        thread.join()
    assert seen == [("host", "host")]


def test_the_process_is_for_every_thread():
    seen = []
    jax_w4a8.use_backend("xla")
    thread = threading.Thread(target=lambda: seen.append((backends.current(), takes())))
    thread.start()
    thread.join()
    assert seen == [("xla", "xla")]


def test_blocks_of_many_threads_leave_the_process_alone():
    jax_w4a8.use_backend("auto")
    wrong = []

    def work(name):
        for _ in range(300):
            with jax_w4a8.use_backend(name):
                if backends.current() != name:
                    wrong.append(name)

    threads = [threading.Thread(target=work, args=(n,)) for n in ("host", "xla") * 3]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert (wrong, backends.current()) == ([], "auto")


def test_overlapping_blocks_leave_the_process_alone():
    jax_w4a8.use_backend("auto")
    first, second = jax_w4a8.use_backend("host"), jax_w4a8.use_backend("xla")
    with first, second:
        assert backends.current() == "xla"
    assert backends.current() == "auto"


def test_jit_traces_again_when_the_backend_changes():
    traced = []

    @jax.jit
    def f(x):
        traced.append(backends.current())
        return jax_w4a8.dot(x, W)

    for name in ("xla", "host", "xla", "host"):
        with jax_w4a8.use_backend(name):
            assert (f(X) == 64).all()
    jax_w4a8.use_backend("xla")
    f(X)
    assert traced[:2] == ["xla", "host"]
    assert set(traced[2:]) <= {"xla"}


def environment(script, value):
    return subprocess.run(
        [sys.executable, "-c", script],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "JAX_PLATFORMS": "cpu",
            "JAX_W4A8_BACKEND": value,
        },
        capture_output=True,
        text=True,
    )


def test_the_environment_is_read_at_first_use():
    script = """
import os, jax_w4a8, jax_w4a8.backends as b
os.environ["JAX_W4A8_BACKEND"] = "xla"
print(b.current())
os.environ["JAX_W4A8_BACKEND"] = "host"
print(b.current())
jax_w4a8.use_backend("host")
print(b.current())
"""
    done = environment(script, "misspelt")
    assert done.stdout.split() == ["xla", "xla", "host"], done.stderr


def test_a_misspelt_environment_variable():
    script = """
import numpy, jax_w4a8
w = jax_w4a8.quantize(numpy.ones((64, 8), "float32"))
try:
    jax_w4a8.dot(numpy.ones((2, 64), "float32"), w)
except ValueError as error:
    print(error)
with jax_w4a8.use_backend("xla"):
    print(jax_w4a8.dot(numpy.ones((1, 64), "float32"), w)[0, 0])
"""
    done = environment(script, "hots")
    known = ", ".join(("auto", *backends.NAMES))
    assert done.stdout.splitlines() == [
        f"the environment variable JAX_W4A8_BACKEND: expected one of {known}; got 'hots'",
        "64.0",
    ], done.stderr


def test_an_empty_environment_variable_is_none():
    done = environment("import jax_w4a8.backends as b; print(b.current())", "")
    assert done.stdout == "auto\n", done.stderr


PRODUCT = "dense product M=3, N=8, K=64, block=128, float32 x plain FP4 -> float32"
AUTO = "Use jax_w4a8.use_backend('auto') to let another backend serve"


def refused(name, platform):
    with jax_w4a8.use_backend(name), pytest.raises(BackendError) as raised:
        lowered(platform)
    return str(raised.value)


def test_a_named_backend_on_a_platform_that_it_does_not_serve():
    assert refused("host", "cuda") == (
        f"backend 'host' cannot compute this {PRODUCT}: it runs on cpu, not on cuda. {AUTO}"
    )
    assert refused("sm100", "cpu") == (
        f"backend 'sm100' cannot compute this {PRODUCT}: it runs on cuda, not on cpu. {AUTO}"
    )


@pytest.mark.parametrize(
    ("kind", "capability"), [("NVIDIA A100", "8.0"), ("NVIDIA GeForce RTX 5070", "12.1")]
)
def test_a_device_of_another_capability(monkeypatch, kind, capability):
    device = types.SimpleNamespace(compute_capability=capability, device_kind=kind)
    monkeypatch.setattr(selection, "devices_of", lambda platform: (device,))
    assert refused("sm100", "cuda") == (
        f"backend 'sm100' cannot compute this {PRODUCT}: it needs a GPU of compute capability "
        f"10.x (B200, B300); {kind} has {capability}. {AUTO}"
    )
    with jax_w4a8.use_backend("auto"):
        assert "custom_call" not in lowered("cuda").as_text()


def test_named_for_a_platform_that_is_not_here():
    with jax_w4a8.use_backend("sm100"):
        assert "@jax_w4a8_sm100_dense_v1" in lowered("cuda").as_text()
    with jax_w4a8.use_backend("auto"):
        assert "custom_call" not in lowered("cuda").as_text()


def test_a_weight_in_a_layout_of_no_kernel_here():
    packed = jax_w4a8.prepack(W, layout="sm100")
    with jax_w4a8.use_backend("host"), pytest.raises(BackendError) as raised:
        jax_w4a8.dot(X, packed)
    product = PRODUCT.replace("plain", "sm100")
    layout = (
        "the weight is in the layout 'sm100', which its kernels do not take; "
        "jax_w4a8.unpack(w) gives the plain layout, which every backend takes"
    )
    assert str(raised.value) == f"backend 'host' cannot compute this {product}: {layout}. {AUTO}"
    with jax_w4a8.use_backend("auto"), pytest.raises(BackendError) as raised:
        jax_w4a8.dot(X, packed)
    message = str(raised.value)
    assert message.startswith(f"no backend can compute this {product} on cpu: ")
    for reason in ("sm100: it runs on cuda, not on cpu", f"host: {layout}", f"xla: {layout}"):
        assert reason in message
