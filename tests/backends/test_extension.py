"""An extension that is missing or cannot be used: one warning at most, and the fallback."""

import importlib
import types
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_w4a8
from jax_w4a8 import BackendError, backends
from jax_w4a8.backends import extension

REMEDY = "install jax_w4a8 with a C++ compiler at hand to build it"
MISSING = f"the extension jax_w4a8._host is not built; {REMEDY}"
MAJOR, MINOR = extension.jaxlib_ffi_version()


def module_of(version):
    """An extension of another FFI version, whose targets must not be registered."""
    return types.SimpleNamespace(
        ffi_api_version=lambda: version,
        registrations=lambda: pytest.fail("its targets were registered"),
    )


def not_found(name):
    return ModuleNotFoundError(f"No module named {name!r}", name=name)


@pytest.fixture
def extension_gives(monkeypatch):
    """Has ``import jax_w4a8._host`` give a module or raise an error."""

    def give(outcome):
        def import_module(name):
            if name != "jax_w4a8._host":
                return importlib.import_module(name)
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        monkeypatch.setattr(
            extension, "importlib", types.SimpleNamespace(import_module=import_module)
        )
        extension.load.cache_clear()

    yield give
    monkeypatch.undo()
    extension.load.cache_clear()


UNUSABLE = {
    "undefined symbol": (
        ImportError("_host.so: undefined symbol: _ZN3xla3ffi"),
        "_host.so: undefined symbol: _ZN3xla3ffi",
    ),
    "needs a module that is not there": (
        not_found("nanobind_runtime"),
        "it needs the module 'nanobind_runtime'",
    ),
    "too new a minor version": (
        module_of((MAJOR, MINOR + 1)),
        f"it was built for XLA FFI {MAJOR}.{MINOR + 1} and jaxlib offers {MAJOR}.{MINOR}",
    ),
    "another major version": (
        module_of((MAJOR + 1, 0)),
        f"it was built for XLA FFI {MAJOR + 1}.0 and jaxlib offers {MAJOR}.{MINOR}",
    ),
}

K, N, E = 64, 8, 3
SIZES = jnp.array([2, 0, 3], jnp.int32)


def arguments(kind):
    rng = np.random.default_rng(0)
    rows = {"dense": (5, K), "grouped": (5, K), "masked": (E, 4, K)}[kind]
    x = rng.choice([-1.0, -0.5, 0.5, 1.0], rows).astype(np.float32)
    kernel = rng.choice([-1.0, 1.0], (K, N) if kind == "dense" else (E, K, N)).astype(np.float32)
    return x, kernel


def product(kind):
    """A function that jit has not seen yet, and its operands."""
    x, kernel = arguments(kind)
    w = jax_w4a8.quantize(kernel)
    if kind == "dense":
        return jax.jit(lambda: jax_w4a8.dot(x, w))
    op = jax_w4a8.grouped_dot if kind == "grouped" else jax_w4a8.masked_grouped_dot
    return jax.jit(lambda: op(x, w, SIZES))


def expected(kind):
    x, kernel = arguments(kind)
    if kind == "dense":
        return x @ kernel
    if kind == "grouped":
        return np.einsum("mk,mkn->mn", x, kernel[[0, 0, 2, 2, 2]])
    return np.einsum("emk,ekn->emn", x, kernel) * (np.arange(4) < SIZES[:, None])[..., None]


@pytest.mark.parametrize("why", UNUSABLE)
def test_unusable_is_one_warning_and_the_fallback(extension_gives, why):
    outcome, reason = UNUSABLE[why]
    extension_gives(outcome)
    message = f"the extension jax_w4a8._host cannot be used: {reason}; {REMEDY}"
    with warnings.catch_warnings(record=True) as seen, jax_w4a8.use_backend("auto"):
        warnings.simplefilter("always")
        first = product("dense")
        assert "custom_call" not in first.lower().as_text()
        np.testing.assert_array_equal(first(), expected("dense"))
        product("dense")()
        product("grouped").lower()
    assert [(w.category, str(w.message)) for w in seen] == [
        (RuntimeWarning, f"jax_w4a8: {message}")
    ]
    with jax_w4a8.use_backend("host"), pytest.raises(BackendError) as raised:
        product("dense")()
    assert message in str(raised.value)


def test_absent_is_no_warning(extension_gives):
    extension_gives(not_found("jax_w4a8._host"))
    with warnings.catch_warnings(), jax_w4a8.use_backend("auto"):
        warnings.simplefilter("error")
        assert "custom_call" not in product("dense").lower().as_text()
    assert backends.get("host").missing() == MISSING
    assert backends.get("host").kernels() == ()


def test_an_older_minor_version_is_registered(extension_gives):
    registered = []
    extension_gives(
        types.SimpleNamespace(
            ffi_api_version=lambda: (MAJOR, MINOR - 1),
            registrations=lambda: registered.append("read") or {},
        )
    )
    assert backends.get("host").missing() is None
    assert registered == ["read"]


@pytest.mark.parametrize("kind", ["dense", "grouped", "masked"])
@pytest.mark.parametrize(
    ("name", "present", "serves"),
    [
        ("auto", True, "host"),
        ("auto", False, "xla"),
        ("xla", True, "xla"),
        ("xla", False, "xla"),
        ("host", True, "host"),
        ("host", False, None),
    ],
)
def test_the_switch(extension_gives, kind, name, present, serves):
    if not present:
        extension_gives(not_found("jax_w4a8._host"))
    with jax_w4a8.use_backend(name):
        f = product(kind)
        if serves is None:
            with pytest.raises(BackendError) as raised:
                f()
            message = str(raised.value)
            assert message.startswith(f"backend 'host' cannot compute this {kind} product M=")
            assert message.endswith(
                f": {MISSING}. Use jax_w4a8.use_backend('auto') to let another backend serve"
            )
            return
        text = f.lower().as_text()
        assert (f"@jax_w4a8_host_{kind}_v1" in text) == (serves == "host")
        assert ("custom_call" in text) == (serves == "host")
        np.testing.assert_array_equal(f(), expected(kind))
