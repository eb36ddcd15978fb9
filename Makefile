# Everything here runs on a laptop without a GPU.  make demo | make test | make lint
#
#   .venv         Triton 3.6.0, the oldest supported; holds the tools too
#   .venv-newest  Triton 3.9.0
#
# An environment is made in two steps, each with a stamp: the compiler half (no torch, no Triton) and the rest.

PYTHON ?= python3
JOBS   ?= 2
SHARD  ?=

VENV   := .venv
NEWEST := .venv-newest
PY     := $(VENV)/bin/python
PIP    := -m pip --disable-pip-version-check -qq
RECIPE := Makefile pyproject.toml overlap/version.py constraints/common.txt

HALF   := click filelock greenlet libcst ml_dtypes numpy platformdirs pyyaml rich editables hatchling
LINT   := import-linter mypy ruff types-PyYAML
TEST   := hypothesis jsonschema networkx pytest pytest-xdist syrupy

.DEFAULT_GOAL := help
.PHONY: help setup test lint format demo sweep golden wheel clean

help:
	@echo "make setup   .venv and .venv-newest"
	@echo "make demo    compiles a kernel, simulates it on 4 ranks, removes a wait and shows the race"
	@echo "make test    every test that needs no GPU"
	@echo "make lint    ruff, mypy, import directions"
	@echo "make format  rewrites the sources with ruff"
	@echo "make sweep   the full matrices (hours); SHARD=1/64 to 64/64: each a part of them"
	@echo "make golden  accepts the generated files as the new goldens"
	@echo "make wheel   dist/*.whl"

# A virtual environment that was left half made is made anew; one that works is kept and brought up to date.
define usable_venv
@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "overlap needs Python 3.10 or newer; set PYTHON=")'
@$(1)/bin/python $(PIP) --version >/dev/null 2>&1 || { echo "make: new $(1)"; $(PYTHON) -m venv --clear $(1); }
endef

$(VENV)/.half: $(RECIPE)
	$(call usable_venv,$(VENV))
	@echo "make: compiler half into $(VENV)"
	@$(PY) $(PIP) install --no-compile -c constraints/common.txt $(HALF)
	@$(PY) $(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.lint: $(VENV)/.half
	@echo "make: lint tools into $(VENV)"
	@$(PY) $(PIP) install --no-compile -c constraints/common.txt $(LINT)
	@touch $@

$(VENV)/.ready: $(VENV)/.half constraints/cpu.txt
	@echo "make: torch and Triton into $(VENV)"
	@$(PY) $(PIP) install --no-compile -c constraints/cpu.txt torch triton
	@touch $@

$(VENV)/.test: $(VENV)/.ready $(VENV)/.lint constraints/kernels.txt
	@echo "make: test tools into $(VENV)"
	@$(PY) $(PIP) install --no-compile -c constraints/cpu.txt $(TEST)
	@$(PY) $(PIP) install --no-deps --no-compile -r constraints/kernels.txt
	@touch $@

$(NEWEST)/.test: $(RECIPE) constraints/cpu-newest.txt constraints/kernels.txt
	$(call usable_venv,$(NEWEST))
	@echo "make: everything, with the newest Triton, into $(NEWEST)"
	@$(NEWEST)/bin/python $(PIP) install --no-compile -c constraints/common.txt $(HALF)
	@$(NEWEST)/bin/python $(PIP) install --no-deps --no-build-isolation -e .
	@$(NEWEST)/bin/python $(PIP) install --no-compile -c constraints/cpu-newest.txt torch triton $(TEST)
	@$(NEWEST)/bin/python $(PIP) install --no-deps --no-compile -r constraints/kernels.txt
	@touch $@

setup: $(VENV)/.test $(NEWEST)/.test

# The compiler half is shown while torch and Triton are not even installed.
demo: $(VENV)/.half
	@$(PY) examples/demo.py compile
	@$(MAKE) --no-print-directory $(VENV)/.ready
	@$(PY) examples/demo.py simulate

test: setup
	@$(PY) tests/tiers.py --jobs $(JOBS) --python 3.6.0=$(PY) --python 3.9.0=$(NEWEST)/bin/python

sweep: setup
	@OVERLAP_SWEEP=1 $(PY) tests/tiers.py --jobs $(JOBS) $(addprefix --shard ,$(SHARD)) \
	  --python 3.6.0=$(PY) --python 3.9.0=$(NEWEST)/bin/python

golden: $(VENV)/.test
	@$(PY) -m pytest tests/golden --snapshot-update

# All four run, whatever the first ones say.
lint: $(VENV)/.lint
	@status=0; \
	$(VENV)/bin/ruff check --output-format concise . || status=1; \
	$(VENV)/bin/ruff format --check --quiet . || { echo "ruff format: make format"; status=1; }; \
	$(VENV)/bin/mypy || status=1; \
	$(VENV)/bin/lint-imports --no-cache || status=1; \
	exit $$status

format: $(VENV)/.lint
	@$(VENV)/bin/ruff check --fix .
	@$(VENV)/bin/ruff format .

wheel: $(VENV)/.half
	@$(PY) -m hatchling build -t wheel

clean:
	rm -rf $(VENV) $(NEWEST) dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
