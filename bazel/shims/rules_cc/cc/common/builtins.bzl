"""Bazel's own C++ symbols in a struct: a .bzl file cannot export a builtin under the builtin's name directly."""

builtins = struct(
    CcInfo = CcInfo,  # buildifier: disable=native-cc-info
    cc_common = cc_common,  # buildifier: disable=native-cc-common
)
