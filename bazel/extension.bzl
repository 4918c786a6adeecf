"""What MODULE.bazel uses to declare the repositories that WORKSPACE declares directly."""

load("//bazel:repositories.bzl", _declare = "local_toolchains")

def _local_toolchains(_module_ctx):
    _declare()

local_toolchains = module_extension(implementation = _local_toolchains)
