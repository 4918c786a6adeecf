"""A repository made of the CUDA toolkit that nvcc belongs to; empty, and saying so, where there is no nvcc."""

def _toolkit_root(ctx, nvcc):
    """The toolkit's folder. `nvcc` may be a script that calls the real one, so only nvcc itself can tell."""
    result = ctx.execute([nvcc, "--dryrun", "-c", "any.cu"])
    for line in result.stderr.splitlines():
        if line.startswith("#$ TOP="):
            return ctx.path(line[len("#$ TOP="):])
    fail("%s --dryrun names no toolkit folder: %s" % (nvcc, result.stderr))

def _cuda_toolkit(ctx):
    nvcc = ctx.os.environ.get("JAX_W4A8_NVCC") or ctx.which("nvcc")
    if nvcc:
        root = _toolkit_root(ctx, nvcc)
        ctx.symlink(root.get_child("include"), "include")
        for folder in ["lib64", "lib"]:
            library = root.get_child(folder).get_child("libcudart_static.a")
            if library.exists:
                ctx.symlink(library, "libcudart_static.a")
                break
    ctx.symlink(Label("//bazel:cuda_toolkit.BUILD"), "BUILD.bazel")
    ctx.file("nvcc.bzl", "NVCC = %r\n" % str(nvcc or ""))

cuda_toolkit = repository_rule(
    implementation = _cuda_toolkit,
    environ = [
        "JAX_W4A8_NVCC",
        "PATH",
    ],
    local = True,
    doc = "Compiler: $JAX_W4A8_NVCC, else nvcc on PATH.",
)
