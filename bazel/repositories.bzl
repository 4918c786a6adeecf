"""The repositories that describe this machine: its Python and, where there is one, its CUDA toolkit."""

load("//bazel:cuda_toolkit.bzl", "cuda_toolkit")
load("//bazel:python_environment.bzl", "python_environment")

def local_toolchains():
    python_environment(name = "jax_w4a8_python")
    cuda_toolkit(name = "jax_w4a8_cuda")
