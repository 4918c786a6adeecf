"""The Java rules that Bazel 4's own tool packages load; nothing here is built with them."""

java_binary = native.java_binary
java_import = native.java_import
java_runtime = native.java_runtime
java_toolchain = native.java_toolchain
