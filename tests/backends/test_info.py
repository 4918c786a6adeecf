"""``python -m jax_w4a8`` and its report of what serves here."""

import os
import subprocess
import sys

import jax
import jaxlib
import pytest

import jax_w4a8
from jax_w4a8 import backends, cli
from jax_w4a8.backends import extension

SERVES = "serves dense, grouped and masked products"


def lines(capsys, *argv):
    assert cli.main(["info", *argv]) == 0
    return capsys.readouterr().out.splitlines()


def test_info(capsys):
    with jax_w4a8.use_backend("auto"):
        report = lines(capsys)
    assert report[0] == (
        f"jax_w4a8 {jax_w4a8.__version__}, jax {jax.__version__}, jaxlib {jaxlib.__version__}"
    )
    assert report[1] == f"platform cpu: {len(jax.local_devices())} x cpu"
    assert report[2].startswith("backend 'auto'")
    for line in (
        "sm100  does not serve: it runs on cuda, not on cpu",
        f"host   {SERVES}",
        "       4 kernels built:",
        f"xla    {SERVES}",
    ):
        assert line in report
    assert report[-1] == "auto takes: host for dense, host for grouped, host for masked"


def test_every_backend_has_a_line_in_the_order_of_auto(capsys):
    starts = [line.split()[0] for line in lines(capsys) if line and not line.startswith(" ")]
    assert [s for s in starts if s in backends.NAMES] == list(backends.NAMES)


def test_kernels(capsys):
    targets = backends.get("host").kernels()
    assert len(targets) == 4
    report = lines(capsys)
    for target in targets:
        assert f"         {target}" in report


def test_without_the_extension(capsys, monkeypatch):
    reason = "the extension jax_w4a8._host is not built; build it"
    monkeypatch.setattr(
        "jax_w4a8.backends.host._extension", lambda: extension.Extension(None, reason)
    )
    report = lines(capsys)
    assert f"host   does not serve: {reason}" in report
    assert report[-1] == "auto takes: xla for dense, xla for grouped, xla for masked"


def test_a_backend_that_serves_some_products_only(capsys, monkeypatch):
    def refuses(product):
        return None if product.kind == "dense" else "its kernels are for one weight"

    monkeypatch.setattr(backends.get("host"), "refuses", refuses)
    report = lines(capsys)
    assert "host   serves dense products only: its kernels are for one weight" in report
    assert report[-1] == "auto takes: host for dense, xla for grouped, xla for masked"


@pytest.mark.parametrize(("value", "status"), [("xla", 0), ("hots", 1)])
def test_the_command_and_its_environment(value, status):
    done = subprocess.run(
        [sys.executable, "-m", "jax_w4a8", "info"],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "JAX_PLATFORMS": "cpu",
            "JAX_W4A8_BACKEND": value,
        },
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (status, "")
    known = ", ".join(("auto", *backends.NAMES))
    assert (
        done.stdout.splitlines()[2]
        == {
            "xla": "backend 'xla' (JAX_W4A8_BACKEND=xla)",
            "hots": (
                f"the environment variable JAX_W4A8_BACKEND: expected one of {known}; got 'hots'"
            ),
        }[value]
    )


@pytest.mark.parametrize(("argv", "status"), [([], 0), (["--help"], 0), (["inof"], 2)])
def test_usage(capsys, argv, status):
    assert cli.main(argv) == status
    out = capsys.readouterr().out
    assert "usage: python -m jax_w4a8 COMMAND [--help]" in out
    assert ("unknown command 'inof'" in out) == (status == 2)
    for command in cli.COMMANDS:
        assert f"\n  {command} " in out
