"""Runs pytest as a Bazel test, with Bazel's conventions for the filter and for the report."""

import os
import site
import sys

import interpreter_site

# Some of rules_python's launchers start the interpreter without its site-packages.
for folder in interpreter_site.SITE_PACKAGES:
    if folder not in sys.path:
        site.addsitedir(folder)

# An editable install in that environment would answer `import jax_w4a8` with the working tree and
# with the extension that CMake built. What is under test here is what Bazel built.
sys.meta_path = [
    finder for finder in sys.meta_path if type(finder).__name__ != "ScikitBuildRedirectingFinder"
]

import pytest  # noqa: E402


def main() -> int:
    arguments = ["-p", "no:cacheprovider", *sys.argv[1:]]
    if report := os.environ.get("XML_OUTPUT_FILE"):
        arguments.append(f"--junitxml={report}")
    if chosen := os.environ.get("TESTBRIDGE_TEST_ONLY"):
        arguments += ["-k", chosen]
    return pytest.main(arguments)


if __name__ == "__main__":
    sys.exit(main())
