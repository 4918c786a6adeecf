"""Tests written for pytest, as Bazel targets."""

load("@rules_python//python:defs.bzl", "py_test")

def pytest_test(name, srcs, deps = [], data = [], args = [], **kwargs):
    """One py_test that runs every test in `srcs`.

    Args:
      name: of the target.
      srcs: the test files; helpers and conftest.py belong in `deps`.
      deps: Python libraries.
      data: files that the tests read.
      args: further arguments of pytest.
      **kwargs: attributes of py_test.
    """
    py_test(
        name = name,
        srcs = srcs + ["//bazel:pytest_main.py"],
        args = ["$(rootpath %s)" % source for source in srcs] + args,
        data = data,
        main = "//bazel:pytest_main.py",
        deps = deps + ["//bazel:pytest_main"],
        **kwargs
    )
