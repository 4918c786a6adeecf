"""Eight simulated CPU devices, and the backends that serve on a CPU."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
_DEVICES = "--xla_force_host_platform_device_count=8"
if _DEVICES not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_DEVICES}".strip()

import pytest  # noqa: E402

import jax_w4a8  # noqa: E402


@pytest.fixture(params=["host", "xla"])
def backend(request):
    """Each backend that serves on a CPU, named: one whose extension is missing fails the test."""
    with jax_w4a8.use_backend(request.param):
        yield request.param
