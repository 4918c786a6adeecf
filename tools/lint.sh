#!/usr/bin/env bash
# Usage: tools/lint.sh check|format. Needs ruff, mypy and clang-format on PATH; buildifier is used where it is.
set -euo pipefail
cd "$(dirname "$0")/.."

mapfile -t cpp < <(find csrc tests -type f \( -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \) | sort)
mapfile -t bazel < <(find . -path './.venv*' -prune -o -path ./build -prune -o -type f \
  \( -name '*.bazel' -o -name '*.BUILD' -o -name '*.bzl' -o -name WORKSPACE \) -print | sort)

# Runs a tool and names it, so that a failure says whose it is.
step() {
  echo "== $1"
  shift
  "$@"
}

case "${1:-}" in
  check)
    step "ruff check" ruff check .
    step "ruff format" ruff format --check .
    step "mypy" mypy
    step "clang-format (${#cpp[@]} files)" clang-format --dry-run --Werror "${cpp[@]}"
    if command -v buildifier >/dev/null; then
      step "buildifier (${#bazel[@]} files)" buildifier -mode=check -lint=warn "${bazel[@]}"
    else
      echo "== buildifier: not on PATH, Bazel's files go unchecked"
    fi
    echo "lint: ok"
    ;;
  format)
    step "ruff check" ruff check --fix .
    step "ruff format" ruff format .
    step "clang-format (${#cpp[@]} files)" clang-format -i "${cpp[@]}"
    if command -v buildifier >/dev/null; then
      step "buildifier (${#bazel[@]} files)" buildifier -lint=fix "${bazel[@]}"
    fi
    echo "format: ok"
    ;;
  *)
    echo "usage: tools/lint.sh check|format" >&2
    exit 2
    ;;
esac
