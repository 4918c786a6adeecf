"""cc_common, which newer rules_cc define in Starlark."""

load(":builtins.bzl", "builtins")

cc_common = builtins.cc_common
