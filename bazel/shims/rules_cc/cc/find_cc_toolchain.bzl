"""How a rule asks for the C++ toolchain, in the terms of rules_cc."""

load("@bazel_tools//tools/cpp:toolchain_utils.bzl", "find_cpp_toolchain")

CC_TOOLCHAIN_ATTRS = {
    "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
}

find_cc_toolchain = find_cpp_toolchain

def use_cc_toolchain():
    return ["@bazel_tools//tools/cpp:toolchain_type"]
