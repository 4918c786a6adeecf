"""CcInfo, which newer rules_cc define in Starlark."""

load(":builtins.bzl", "builtins")

CcInfo = builtins.CcInfo
